#!/usr/bin/env python3
"""Writes src/text/tokenizer_characters.c: what Hugging Face `tokenizers` takes each code point for.

The classes of the split pattern come from asking the library's own regex engine, and the code points that its NFC
can change or join come from asking its normaliser, because the two follow different Unicode versions and neither
needs to be the version of a library that we link. Run it again for a new release of `tokenizers`:

    python3 tools/tokenizer_characters.py > src/text/tokenizer_characters.c
"""

import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
OTHER, LETTER, NUMBER, SPACE, NEWLINE, MARK = range(6)  # enum character_class of tokenizer_internal.h
UNSTABLE = 8
NFC, NFD = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str


def matching(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for start in range(0, len(CODE_POINTS), 4096):
        chunk = CODE_POINTS[start : start + 4096]
        kept = "".join(piece for piece, _ in split.pre_tokenize_str("".join(map(chr, chunk))))
        found |= set(chunk) - set(map(ord, kept))
    return found


def trailing():
    """Code points that compose with one before them, in the Unicode version of this Python."""
    found = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    for c in CODE_POINTS:
        parts = unicodedata.decomposition(chr(c)).split()
        if len(parts) == 2 and not parts[0].startswith("<") and unicodedata.normalize("NFC", chr(c)) == chr(c):
            found.add(int(parts[1], 16))
    return found


def known(c):
    """Whether the library's normaliser treats the code point as this Python's does."""
    h = chr(c)
    around = (h, "a" + h, h + "\u0301", "a\u0301" + h, "a\u0315" + h, "a\u0327" + h, "a" + h + "\u0334", "a\u0345" + h)
    return all(NFC(t) == unicodedata.normalize("NFC", t) and NFD(t) == unicodedata.normalize("NFD", t) for t in around)


def main():
    classes = dict.fromkeys(CODE_POINTS, OTHER)
    for pattern, value in ((r"\p{L}", LETTER), (r"\p{M}", MARK), (r"\p{N}", NUMBER), (r"\s", SPACE), (r"[\r\n]", NEWLINE)):
        for c in matching(pattern):
            classes[c] = value
    joins = trailing()
    for c in CODE_POINTS:
        unstable = c in joins or unicodedata.combining(chr(c)) != 0 or NFC(chr(c)) != chr(c)
        if unstable and known(c):
            classes[c] |= UNSTABLE
    runs, last = [], OTHER
    for c in range(0x110000):
        value = classes.get(c, OTHER)
        if value != last:
            runs.append(c << 4 | value)
            last = value
    print("/* Written by tools/tokenizer_characters.py from the Hugging Face tokenizers library, version")
    print(f" * {tokenizers.__version__}. Each entry starts a run of code points: code point * 16 + class + 8 if unstable")
    print(" * (tokenizer_internal.h). */")
    print('#include "text/tokenizer_internal.h"\n')
    print("/* clang-format off */")
    print("const uint32_t tokenizer_character_runs[] = {")
    for start in range(0, len(runs), 10):
        print("    " + ", ".join(f"0x{run:06x}" for run in runs[start : start + 10]) + ",")
    print("};")
    print("/* clang-format on */\n")
    print(f"const size_t tokenizer_character_run_count = {len(runs)};")


if __name__ == "__main__":
    main()
