"""A reward for TRL's GRPO in matrix.py: the share of digits in an answer."""


def digits(completions, **more):
    texts = [one[0]["content"] if isinstance(one, list) else one for one in completions]
    return [sum(letter.isdigit() for letter in text) / max(1, len(text)) for text in texts]
