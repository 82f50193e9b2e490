"""Chat templates: reading, rendering within bounds, and what of a conversation is learned. Knows no token numbers but for a given one."""
