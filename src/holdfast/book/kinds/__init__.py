"""The kinds of cards: pieces of knowledge, one file each, that prove themselves. Judges nothing."""
