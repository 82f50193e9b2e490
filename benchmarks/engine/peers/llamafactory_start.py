"""`llamafactory-cli train CONFIG` in this very process, so that its steps can be seen. Argument: the config."""

from llamafactory.train.tuner import run_exp

run_exp()
