"""Nouns and paper: types, errors, config, run folder, journals, file formats. No torch, no processes."""
