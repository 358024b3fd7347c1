#!/usr/bin/env python3
"""mdBook preprocessor: links that lead out of docs/ become links to the repository."""

import json
import posixpath
import re
import sys

REPOSITORY = "https://github.com/bywash/bywash/blob/main/"


def rewrite(items):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if not chapter:
            continue
        directory = posixpath.join("docs", posixpath.dirname(chapter["source_path"] or ""))

        def absolute(match):
            path = posixpath.normpath(posixpath.join(directory, match[1]))
            return match[0] if path.startswith("docs/") else f"]({REPOSITORY}{path}"

        chapter["content"] = re.sub(r"\]\((\.\./[^)#]*)", absolute, chapter["content"])
        rewrite(chapter["sub_items"])


if len(sys.argv) > 1:  # mdbook asks: supports RENDERER
    sys.exit(0)
_, book = json.load(sys.stdin)
rewrite(book.get("items") or book["sections"])
json.dump(book, sys.stdout)
