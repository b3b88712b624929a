"""Jane Austen's six novels (public domain) out of Debian's package r-cran-janeaustenr, as plain paragraphs.

    apt-get download r-cran-janeaustenr && dpkg -x r-cran-janeaustenr_*.deb austen
    python3 tools/tiny/prose.py austen out/prose.json.gz

The package holds R's serialised data: chunks of [length, zlib stream], each a vector of lines."""
import gzip
import json
import re
import struct
import sys
import zlib
from pathlib import Path


def lines_of(chunk):
    """The strings of one serialised character vector (R's XDR format, version 3)."""
    at = chunk.index(b"UTF-8") + 5
    kind, count = struct.unpack(">II", chunk[at:at + 8])
    assert kind & 0xFF == 16, "not a character vector"
    at += 8
    for _ in range(count):
        _, size = struct.unpack(">Ii", chunk[at:at + 8])
        yield chunk[at + 8:at + 8 + max(size, 0)].decode("utf-8", "replace")
        at += 8 + max(size, 0)


def main(folder, out):
    data = (Path(folder) / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    paragraphs, at = [], 0
    while at < len(data):
        stream = zlib.decompressobj()
        chunk = stream.decompress(data[at + 4:])
        at = len(data) - len(stream.unused_data)
        book = "\n".join(lines_of(chunk))
        for p in re.split(r"\n\s*\n", book):
            p = " ".join(p.replace("_", "").replace("--", " - ").split())
            if len(p) > 80:
                paragraphs.append(p)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(out, "wt", encoding="utf-8") as f:
        json.dump(paragraphs, f, ensure_ascii=False)
    print(f"{len(paragraphs)} paragraphs, {sum(map(len, paragraphs))} characters")


if __name__ == "__main__":
    main(*sys.argv[1:])
