"""Several ranks: the group, where they meet, who is slow, what each may believe of the others."""
