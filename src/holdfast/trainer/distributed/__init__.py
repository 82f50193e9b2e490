"""Several ranks: the group, where they meet, who is slow, what each may believe of the others.

FSDP is in model/frozen/sharded.py and model/trained/cut.py.
"""
