//! The text of Word documents and Excel workbooks, which are ZIP archives of XML.

use std::io::{BufReader, Cursor, Read as _};

use calamine::{Data, DataRef, Reader as _, Xlsx};
use quick_xml::events::Event;
use quick_xml::{Reader, XmlVersion};
use zip::ZipArchive;

use super::page::{ACCEPTED, DOCX, MAX_ENTRIES, MAX_UNPACKED, Page, Refused, XLSX, refused};
use crate::domain::file::FileText;

const TOO_LARGE: &str = "the document is far larger unpacked than it looks";

/// Which of the two it is, and its text.
///
/// # Errors
/// If it is neither, damaged, encrypted, or unpacks to more than is looked at.
pub(super) fn read(bytes: &[u8], most_chars: usize) -> Result<(&'static str, FileText), Refused> {
    let Ok(mut archive) = ZipArchive::new(Cursor::new(bytes)) else {
        return refused("the document is damaged: its archive cannot be read");
    };
    if archive.len() > MAX_ENTRIES {
        return refused(format!("the document is made of {} files; at most {MAX_ENTRIES} are looked at", archive.len()));
    }
    let mut unpacked = 0_u64;
    for index in 0..archive.len() {
        let Ok(entry) = archive.by_index_raw(index) else { return refused("the document is damaged: its archive cannot be read") };
        if entry.encrypted() {
            return refused("the document is encrypted; upload it without its password");
        }
        unpacked = unpacked.saturating_add(entry.size());
    }
    if unpacked > MAX_UNPACKED {
        return refused(format!("{TOO_LARGE}: {unpacked} bytes; at most {MAX_UNPACKED} are looked at"));
    }
    if archive.index_for_name("word/document.xml").is_some() {
        return Ok((DOCX, words(&mut archive, most_chars)?));
    }
    if archive.index_for_name("xl/workbook.xml").is_some() {
        return Ok((XLSX, cells(bytes, most_chars)?));
    }
    refused(format!("the file is an archive of no type that is accepted; there are {ACCEPTED}"))
}

/// Paragraphs on lines of their own, cells of tables with tabs between them.
fn words(archive: &mut ZipArchive<Cursor<&[u8]>>, most_chars: usize) -> Result<FileText, Refused> {
    let damaged = || Refused("the document is damaged: its text cannot be read".to_owned());
    let body = archive.by_name("word/document.xml").map_err(|_| damaged())?;
    // The archive may lie about how much is in it.
    let mut reader = Reader::from_reader(BufReader::new(body.take(MAX_UNPACKED)));
    let mut page = Page::new(most_chars);
    let (mut buffer, mut in_text, mut is_document) = (Vec::new(), false, false);
    loop {
        buffer.clear();
        let event = reader.read_event_into(&mut buffer).map_err(|_| damaged())?;
        let has_room = match event {
            Event::Start(tag) => {
                in_text = tag.local_name().as_ref() == "t";
                is_document |= tag.local_name().as_ref() == "document";
                true
            }
            Event::Empty(tag) => match tag.local_name().as_ref() {
                "tab" => page.add("\t"),
                "br" | "cr" => page.add("\n"),
                _ => true,
            },
            Event::End(tag) => {
                in_text = false;
                match tag.local_name().as_ref() {
                    "p" => page.add("\n"),
                    "tc" => page.add("\t"),
                    _ => true,
                }
            }
            Event::Text(text) if in_text => page.add(&text.xml_content(XmlVersion::Explicit1_0)),
            Event::GeneralRef(reference) if in_text => match reference.resolve_char_ref().ok().flatten() {
                Some(c) => page.add(c.encode_utf8(&mut [0; 4])),
                None => page.add(match reference.as_ref() {
                    "amp" => "&",
                    "lt" => "<",
                    "gt" => ">",
                    "quot" => "\"",
                    "apos" => "'",
                    _ => "\u{fffd}",
                }),
            },
            Event::Eof => break,
            Event::Text(_)
            | Event::GeneralRef(_)
            | Event::CData(_)
            | Event::Comment(_)
            | Event::Decl(_)
            | Event::PI(_)
            | Event::DocType(_) => true,
        };
        if !has_room {
            break;
        }
    }
    if is_document { Ok(page.finish()) } else { Err(damaged()) }
}

/// A gap of more columns than this is not written in tabs: they would say nothing, and the room of the text is limited.
const MOST_TABS: u32 = 64;

/// Each sheet under its name, a row on each line, a tab between one column and the next, from the first column on that the sheet uses. A
/// cell that is further to the right than that goes has its reference before it.
fn cells(bytes: &[u8], most_chars: usize) -> Result<FileText, Refused> {
    let damaged = || Refused("the workbook is damaged: it cannot be read".to_owned());
    let mut workbook: Xlsx<_> = Xlsx::new(Cursor::new(bytes)).map_err(|_| damaged())?;
    let mut page = Page::new(most_chars);
    for sheet in workbook.sheet_names() {
        let Ok(mut reader) = workbook.worksheet_cells_reader(&sheet) else { continue };
        if !page.add(&format!("## {sheet}\n")) {
            return Ok(page.finish());
        }
        // The first column is known when all cells are, which come row by row. What the text has no room for is not waited for.
        let (mut found, mut chars) = (Vec::new(), 0_usize);
        while chars <= most_chars.saturating_add(1)
            && let Some(cell) = reader.next_cell().map_err(|_| damaged())?
        {
            let value = shown(cell.get_value());
            if value.is_empty() {
                continue;
            }
            chars = chars.saturating_add(value.chars().count()).saturating_add(1);
            found.push((cell.get_position(), value));
        }
        let first = found.iter().map(|((_, column), _)| *column).min().unwrap_or(0);
        let mut last: Option<(u32, u32)> = None;
        for ((row, column), value) in found {
            let is_next_line = last.is_some_and(|(before, _)| before != row);
            let from = last.filter(|_| !is_next_line).map_or(first, |(_, before)| before);
            let gap = column.saturating_sub(from);
            let line = if is_next_line { "\n" } else { "" };
            let between = match gap {
                // Cells that do not come in their order still stand apart.
                0..=MOST_TABS => {
                    let least = usize::from(last.is_some() && !is_next_line);
                    format!("{line}{}", "\t".repeat((gap as usize).max(least)))
                }
                _ => format!("{line}{}{}: ", if last.is_some() && !is_next_line { "\t" } else { "" }, reference(row, column)),
            };
            last = Some((row, column));
            if !(page.add(&between) && page.add(&value)) {
                return Ok(page.finish());
            }
        }
        if !page.add("\n") {
            break;
        }
    }
    Ok(page.finish())
}

/// A cell as people name it, such as `C7`.
fn reference(row: u32, column: u32) -> String {
    let (mut letters, mut left) = (Vec::new(), u64::from(column) + 1);
    while left > 0 {
        letters.push(char::from(b'A' + ((left - 1) % 26) as u8));
        left = (left - 1) / 26;
    }
    let letters: String = letters.iter().rev().collect();
    format!("{letters}{}", u64::from(row) + 1)
}

fn shown(value: &DataRef<'_>) -> String {
    match value {
        DataRef::DateTime(when) if when.is_datetime() => {
            let (year, month, day, hour, minute, second, _) = when.to_ymd_hms_milli();
            format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}").trim_end_matches(" 00:00:00").to_owned()
        }
        other => Data::from(other.clone()).to_string(),
    }
}
