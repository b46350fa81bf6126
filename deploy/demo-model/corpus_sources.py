"""The text the demo model is trained on: Debian packages, their licences, and readers for their formats.

Everything comes from Debian 12 "main", so it may be redistributed.  `fetch` downloads and unpacks the packages
with apt-get (no root needed, nothing is installed); `read_source` yields (name, text) documents of one source.
"""

import gzip
import html.parser
import pathlib
import re
import struct
import subprocess
import zlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """One package's contribution to one domain."""

    domain: str            # prose, code or documentation
    package: str           # Debian package; with kind "src" the name of a source package
    licence: str           # of the files that are read
    glob: str              # below the unpacked package
    reader: str = "plain"  # one of READERS
    cap_bytes: int = 4 << 20
    exclude: str = r"^$"   # regex on the path; matches are skipped
    kind: str = "deb"


PD = "public domain"
GPL2 = "GPL-2+"
SOURCES = [
    Source("prose", "r-cran-janeaustenr", PD + " (package MIT)", "**/data/Rdata.rdb", "r_strings", 6 << 20),
    Source("prose", "r-cran-tokenizers", PD + " (package MIT)", "**/data/Rdata.rdb", "r_strings", 2 << 20),
    Source("prose", "snappy", PD, "*/testdata/[aplc]*.txt", kind="src"),
    Source("prose", "golang-1.19-src", PD, "**/src/testdata/Isaac.Newton-Opticks.txt"),
    Source("prose", "bible-kjv", PD, "usr/bin/bible", "bible", 5 << 20),
    Source("prose", "anarchism", GPL2, "**/markdown/*.md.gz", "markdown", cap_bytes=9 << 19),
    Source("prose", "dict-jargon", PD, "**/jargon.dict.dz", "dictionary", 2 << 20),
    Source("prose", "dict-devil", PD, "**/devil.dict.dz", "dictionary"),
    Source("prose", "dict-gcide", "GPL-2+", "**/gcide.dict.dz", "dictionary", 3 << 19),
    Source("code", "libpython3.11-stdlib", "PSF-2", "**/*.py", cap_bytes=7 << 20,
           exclude=r"encodings/|pydoc_data|_sysconfigdata|lib2to3/pgen2"),
    Source("code", "libpython3.11-minimal", "PSF-2", "**/*.py", exclude=r"encodings/"),
    Source("code", "golang-1.19-src", "BSD-3-clause", "**/src/**/*.go", cap_bytes=7 << 20,
           exclude=r"_test\.go|testdata|/cmd/|zerrors|zsys|ztypes|syscall|unicode/|gen\.go|crypto|vendor"),
    Source("code", "redis", "BSD-3-clause", "*/src/*.[ch]", kind="src", exclude=r"help\.h|testhelp"),
    Source("code", "git", "GPL-2", "*/*.c", cap_bytes=5 << 20, kind="src"),
    Source("code", "sqlite3", PD, "*/src/*.c", kind="src"),
    Source("code", "libabsl-dev", "Apache-2.0", "**/*.h", cap_bytes=2 << 20),
    Source("code", "rust-src", "MIT or Apache-2.0", "**/library/**/*.rs", cap_bytes=5 << 20,
           exclude=r"stdarch|tests?/|benches|unicode_data|portable-simd|generated"),
    Source("documentation", "python3.11-doc", "PSF-2", "**/_sources/**/*.rst.txt", cap_bytes=7 << 20,
           exclude=r"changelog"),
    Source("documentation", "linux-doc-6.1", "GPL-2", "**/Documentation/**/*.gz", cap_bytes=5 << 20,
           exclude=r"translations|devicetree|ABI|\.(svg|c|h|py|dot)\.gz|maintainers|features/"),
    Source("documentation", "git-doc", "GPL-2", "**/*.txt", cap_bytes=3 << 20, exclude=r"RelNotes"),
    Source("documentation", "perl-doc", "GPL-1+ or Artistic", "**/*.pod", cap_bytes=4 << 20,
           exclude=r"perltoc|perluniprops|delta"),
    Source("documentation", "manpages", "GPL-2+, BSD and verbatim permissions", "**/man[1-8]/*.gz", "man", 2 << 20),
    Source("documentation", "manpages-dev", "GPL-2+, BSD and verbatim permissions", "**/man[23]/*.gz", "man", 3 << 20),
    Source("documentation", "debian-reference-en", GPL2, "**/*.en.html", "html"),
    Source("documentation", "developers-reference", GPL2, "**/*.txt*", exclude=r"changelog|robots"),
    Source("documentation", "debian-policy", GPL2, "**/policy.txt*"),
    Source("documentation", "postgresql-doc-15", "PostgreSQL", "**/*.html", "html", 5 << 20,
           exclude=r"bookindex|release-|features-sql|errcodes|keywords-app|biblio"),
    Source("documentation", "sqlite3-doc", PD, "**/*.html", "html", 2 << 20,
           exclude=r"requirements|crossref|lang_select|syntaxdiagrams|releaselog|changes|session/|c3ref|matrix|hlr"),
]


def fetch(root: pathlib.Path) -> None:
    """Downloads and unpacks every package below `root`; a package already there is kept.

    Source packages need a deb-src line in the apt sources.
    """
    root.mkdir(parents=True, exist_ok=True)
    helpers = [Source("prose", "bible-kjv-text", PD, "", "plain")]  # the data that bible-kjv's program prints
    for source in SOURCES + helpers:
        target = root / source.package
        if target.exists():
            continue
        print(f"fetch {source.kind} {source.package}", flush=True)
        work = root / ".download" / source.package
        work.mkdir(parents=True, exist_ok=True)
        if source.kind == "deb":
            subprocess.run(["apt-get", "download", source.package], cwd=work, check=True)
            target.mkdir()
            subprocess.run(["dpkg", "-x", next(work.glob("*.deb")), target], check=True)
        else:
            subprocess.run(["apt-get", "source", "--download-only", source.package], cwd=work, check=True)
            target.mkdir()
            subprocess.run(["tar", "xf", next(work.glob("*.orig.tar.*")), "-C", target], check=True)


class _HtmlText(html.parser.HTMLParser):
    """Keeps the text of an HTML page: one blank line between blocks, preformatted text as it is."""

    BLOCKS = {"p", "div", "pre", "li", "dt", "dd", "h1", "h2", "h3", "h4", "tr", "table", "ul", "ol", "dl", "br"}
    SKIP = {"script", "style", "head", "nav"}

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.skip, self.pre = [], 0, 0

    def handle_starttag(self, tag, attrs):
        self.skip += tag in self.SKIP
        self.pre += tag == "pre"
        if tag in self.BLOCKS:
            self.parts.append("\n" if tag in ("br", "tr", "li", "dt", "dd") else "\n\n")

    def handle_endtag(self, tag):
        self.skip -= tag in self.SKIP and self.skip > 0
        self.pre -= tag == "pre" and self.pre > 0
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data):
        if not self.skip:
            self.parts.append(data if self.pre else re.sub(r"\s+", " ", data))


def _plain(path):
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    yield str(path), raw.decode("utf-8", "replace" if path.name.endswith((".gz", ".dz")) else "strict")


def _html(path):
    parser = _HtmlText()
    parser.feed(path.read_text("utf-8", "replace"))
    lines = [line.strip() if not line.startswith("  ") else line.rstrip() for line in "".join(parser.parts).split("\n")]
    yield str(path), "\n".join(lines)


def _man(path):
    page = gzip.decompress(path.read_bytes())
    if page.startswith(b".so "):
        return
    out = subprocess.run(["groff", "-k", "-t", "-mandoc", "-Tutf8", "-P-c", "-P-b", "-P-o", "-P-u", "-rLL=100n"],
                         input=page, capture_output=True, check=False).stdout
    yield str(path), out.decode("utf-8", "replace").replace("\u2010", "-")


def _dictionary(path):
    """A dictd file, cut at entries into pieces of about 60 kB; each piece counts as a file."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
    text = re.sub(r"\n *\[(?:1913 Webster|PJC|WordNet 1\.5)[^\]]*\]", "", text)
    entries = re.split(r"\n(?=\S)", text)
    piece, size = [], 0
    for number, entry in enumerate(entries):
        piece.append(entry)
        size += len(entry)
        if size > 60_000 or number + 1 == len(entries):
            yield f"{path}#{number:06d}", "\n".join(piece)
            piece, size = [], 0


def _bible(path):
    """The books of the King James Bible, printed by Debian's own program; a book is a file."""
    data_dir = path.parents[3] / "bible-kjv-text" / "usr" / "lib"
    text = subprocess.run([path, "-l78", "-p", data_dir, "gen1:1-rev22:21"], capture_output=True, check=True,
                          text=True, encoding="latin-1").stdout
    books: dict[str, list[str]] = {}
    for chapter in re.split(r"\n(?=[1-3A-Z][A-Za-z ]+ \d+\n\n)", text):
        books.setdefault(chapter.strip().split("\n")[0].rsplit(" ", 1)[0], []).append(chapter.strip("\n"))
    for book, chapters in books.items():
        yield f"{path}#{book}", "\n\n".join(chapters)


def _r_strings(path):
    """The character vectors of an R lazy-load database: zlib records, each a serialised (XDR) object."""
    raw, pos = path.read_bytes(), 0
    while pos < len(raw):
        inflate = zlib.decompressobj()
        record = inflate.decompress(raw[pos + 4:])
        start, pos = pos, len(raw) - len(inflate.unused_data)
        vector = re.search(rb"\x00\x00[\x00\x02]\x10(?=.{4}\x00)", record, re.DOTALL)  # header of a STRSXP
        lines, at = [], vector.end() + 4 if vector else len(record)
        while at <= len(record) - 8:
            flags, size = struct.unpack(">Ii", record[at:at + 8])
            if flags & 0xFF != 9:  # not a CHARSXP: the vector is over
                break
            lines.append(record[at + 8:at + 8 + max(size, 0)].decode("utf-8", "replace"))
            at += 8 + max(size, 0)
        text = "\n".join(lines)
        # The publisher's frame of a book is no part of it.
        book = re.search(r"\*\*\* ?START OF.*?\*\*\*(.*)\*\*\* ?END OF", text, re.DOTALL)
        yield f"{path}#{start}", book[1] if book else text


def _markdown(path):
    for name, text in _plain(path):
        text = re.sub(r"\[([^\]\n]*(?:\n[^\]\n]*)?)\]\([^)\n]*\)", r"\1", text)
        yield name, re.sub(r"\*\*|(?<!\w)_|_(?!\w)|(?<=[ \n])\*(?=\w)", "", text)


READERS = {"plain": _plain, "html": _html, "man": _man, "dictionary": _dictionary, "bible": _bible,
           "r_strings": _r_strings, "markdown": _markdown}


def read_source(source: Source, root: pathlib.Path):
    """Yields (name, text) of every document of `source`, in path order; undecodable files are left out."""
    base = root / source.package
    for path in sorted(base.glob(source.glob)):
        name = str(path.relative_to(base))
        if not path.is_file() or path.is_symlink() or re.search(source.exclude, name):
            continue
        try:
            for document, text in READERS[source.reader](path):
                yield document.replace(str(root) + "/", ""), text
        except (UnicodeDecodeError, OSError, zlib.error):
            continue
