//! Tokens of the syntax, each with its position in the line.

use std::fmt;

/// Syntax error in a line, with its column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Column in characters, counted from 1.
    pub column: usize,
    /// Description of the error.
    pub what: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.what)
    }
}

impl std::error::Error for SyntaxError {}

/// Characters between items.
const SEPARATORS: [char; 5] = [',', ' ', '\t', '\r', '\n'];

/// Part of a line with its position.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    line: &'a str,
    start: usize,
    end: usize,
}

impl<'a> Text<'a> {
    pub fn new(line: &'a str) -> Self {
        Self { line, start: 0, end: line.len() }
    }

    pub fn str(self) -> &'a str {
        &self.line[self.start..self.end]
    }

    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Returns bytes `from..to` of this part.
    pub fn sub(self, from: usize, to: usize) -> Self {
        Self { start: self.start + from, end: self.start + to, ..self }
    }

    pub fn from(self, from: usize) -> Self {
        self.sub(from, self.str().len())
    }

    pub fn trim(self) -> Self {
        let str = self.str();
        let from = str.len() - str.trim_start().len();
        self.sub(from, from.max(str.trim_end().len()))
    }

    /// Returns the parts before and behind the first `separator`.
    pub fn split(self, separator: &str) -> Option<(Self, Self)> {
        let at = self.str().find(separator)?;
        Some((self.sub(0, at), self.from(at + separator.len())))
    }

    /// Returns an error at the start of this part.
    pub fn wrong<T>(self, what: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError { column: self.line[..self.start].chars().count() + 1, what: what.into() })
    }

    /// Takes the next item: a name, and its value if there is one. Items are separated by commas or blanks. A value
    /// follows `=` or `:` or is in parentheses; separators within parentheses do not end it. If `->` follows the
    /// parentheses, the value is `...)->...`.
    pub fn next_item(&mut self) -> Result<Option<(Self, Option<Self>)>, SyntaxError> {
        let str = self.str();
        let skipped = str.len() - str.trim_start_matches(SEPARATORS).len();
        *self = self.from(skipped);
        let str = self.str();
        if str.is_empty() {
            return Ok(None);
        }
        let name_len = str.find(['=', ':', '(', ',', ' ', '\t', '\r', '\n']).unwrap_or(str.len());
        let name = self.sub(0, name_len);
        if name.is_empty() {
            return name.wrong(format!("missing name before `{}`", &str[..1]));
        }
        match str.as_bytes().get(name_len) {
            Some(b'(') => {
                let close = self.closing(name_len)?;
                let end = match self.from(close + 1).str() {
                    rest if rest.starts_with("->") => close + 1 + rest.find(SEPARATORS).unwrap_or(rest.len()),
                    _ => close,
                };
                let value = self.sub(name_len + 1, end);
                *self = self.from(end.max(close + 1));
                Ok(Some((name, Some(value))))
            }
            Some(b'=' | b':') => {
                let mut at = name_len + 1;
                while let Some(byte) = str.as_bytes().get(at) {
                    match byte {
                        b',' | b' ' | b'\t' | b'\r' | b'\n' => break,
                        b'(' => at = self.closing(at)? + 1,
                        b')' => return self.from(at).wrong("unexpected `)` without `(`"),
                        _ => at += 1,
                    }
                }
                let value = self.sub(name_len + 1, at);
                *self = self.from(at);
                Ok(Some((name, Some(value))))
            }
            _ => {
                *self = self.from(name_len);
                Ok(Some((name, None)))
            }
        }
    }

    /// Returns the offset of the parenthesis that closes the one at `open`.
    fn closing(self, open: usize) -> Result<usize, SyntaxError> {
        let mut depth = 0;
        for (i, byte) in self.str().bytes().enumerate().skip(open) {
            match byte {
                b'(' => depth += 1,
                b')' => {
                    depth -= 1;
                    if depth == 0 {
                        return Ok(i);
                    }
                }
                _ => {}
            }
        }
        self.from(open).wrong("missing `)` for this `(`")
    }
}
