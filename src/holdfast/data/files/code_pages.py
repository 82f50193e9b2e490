"""Which code page of one byte a letter a text is written in, by the letters it has beyond ASCII. Looks at bytes; knows nothing of rows."""

from __future__ import annotations

import re
from collections import Counter

UTF8_SEQUENCE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_LETTERS = re.compile(rb"[\x80-\xff]+")
_NO_LETTERS = frozenset("«»„“”‚‘’‹›…–—·°€©®™§¡¿\u00a0\u00ad×•£¢´`²½¼¾±¶µ")  # signs
_WESTERN = (  # letters beyond ASCII of the languages that Windows-1252 is for
    *("äöüßéè", "àâçéèêëîïôûùüÿœæ", "áéíóúüñºª", "áâãàçéêíóôõúüºª", "àèéìíîòóùú", "éëïóöüáèêíúç", "åäöéèüàáæøë", "æøåéèêòóôâáüäö"),
    *("áðéíóúýþæö", "àçéèíïóòúüñ", "äõöüšžéåá", "áéíóúàèìòù", "äöåšžéü", "ëçéâîûê"),
)
_CENTRAL = ("ąćęłńóśźżéöüä", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "ăâîşţ", "čćđšž")
_OTHERS = (  # the page, and the letters of a language that it is for
    *((page, known) for page in ("cp1250", "iso8859_2") for known in _CENTRAL),
    ("cp1254", "çğıöşüâîûéİ"),
    ("cp1257", "āčēģīķļņšūžąęėįųōŗ"),
)
_TOGETHER, _RUN = 0.5, 3  # of the letters, in runs of so many: words are of such letters alone
_ALL, _LACKING = 0.98, 0.97  # of the letters: those of a language that explains a text, and of one that does not
_ALPHABETS = ("cp1251", "cp1253", "koi8_r", "iso8859_5")
_FREQUENT = frozenset("оеаинтсрвлαιοετσνρ")  # small letters of Russian and Greek


def page_of(raw: bytes) -> str:
    """Return cp1252 where a text that is no UTF-8 is in a language of Western Europe; another page, the likeliest, where it is not."""
    runs = _LETTERS.findall(raw)
    letters = Counter(letter for run in runs for letter in run.decode("cp1252", "replace") if letter not in _NO_LETTERS)
    total = letters.total()
    if sum(len(run) for run in runs if len(run) >= _RUN) > _TOGETHER * sum(map(len, runs)):
        return max(_ALPHABETS, key=lambda page: sum(letter in _FREQUENT for letter in raw.decode(page, "ignore")))
    western = max((_explained(letters, known) for known in _WESTERN), default=0)
    best, page = max(((_explained(letters, _as_read(known, page)), page) for page, known in _OTHERS), key=lambda one: one[0])
    return page if best >= _ALL * total > 0 and western < _LACKING * total else "cp1252"


def _explained(letters: Counter[str], known: str) -> int:
    """Count the letters that are of an alphabet, in either case."""
    both = known + known.upper()
    return sum(count for letter, count in letters.items() if letter in both)


def _as_read(known: str, page: str) -> str:
    """Return letters of a page as they are read as Windows-1252; in both cases, since these lie elsewhere."""
    return (known + known.upper()).encode(page, "ignore").decode("cp1252", "replace")


def told(raw: bytes) -> str:
    """Return what may be done with a row that is not UTF-8, in words; "" where its page is not known, and where it is damaged UTF-8."""
    page = "cp1252" if UTF8_SEQUENCE.search(raw) else page_of(raw)
    name = page.upper().replace("ISO8859_", "ISO-8859-").replace("CP", "WINDOWS-").replace("_", "-")
    return "" if page == "cp1252" else f"; it may be {name}: iconv -f {name} -t UTF-8 makes UTF-8 of its file"
