"""E-mail addresses of somebody."""

import re

from holdfast.book.kinds.data_check import DataCheck, RowView
from holdfast.privacy.scrub import ADDRESS_FORM

_NOBODY = re.compile(
    r"(?i)^(?:git|users?|usr|username|login|me|you|name|my\w*|who\w*|some\w*|root|ubuntu|ec2-user|pi|admin|alias|abc|foo|bar|test|e?mail)@"
    r"|@(?:[\w.-]+\.)?(?:ex[ea]mple|ejemplo|beispiel|test|localhost|invalid|\w*domain|\w*server|\w*host|email|mail|\w*company|foo|bar|abc"
    r"|what\w*|dest|source|remote|sub|compute|your\w*|my\w*)\b"
    r"|@\d|@.*\.(?:service|socket|target|git|timer|so)$"
)


def look(row: RowView) -> str:
    found = [address for address in ADDRESS_FORM.findall(row.text) if not _NOBODY.search(address)]
    if len(found) < 2:
        return f"the e-mail address {found[0]}" if found else ""
    return f"{len(found)} e-mail addresses, the first {found[0]}"


def redact(text: str) -> str:
    return ADDRESS_FORM.sub(lambda match: match[0] if _NOBODY.search(match[0]) else "[EMAIL]", text)


CARD = DataCheck(
    title="An e-mail address in a text",
    why=("Personal data in a training set can come out of the model again. Addresses that are plainly made up are not counted."),
    source=["https://arxiv.org/abs/2012.07805"],
    verdict="note",
    screen=lambda text: "@" in text,
    look=look,
    mend=redact,
    hits=[{"answer": "write to jane.doe@mailbox.org"}],
    misses=[
        {"answer": "write to user@example.com"},
        {"answer": "ssh root@10.0.0.1"},
        {"answer": "scp user@dest.com:/tmp/x ."},
        {"answer": "git clone git@github.com:a/b.git"},
        {"answer": "getty@tty1.service"},
    ],
)
