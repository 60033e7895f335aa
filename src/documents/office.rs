//! The text of Word documents and Excel workbooks, which are ZIP archives of XML.

use std::io::{BufReader, Cursor, Read as _};

use calamine::{Data, DataRef, Reader as _, Xlsx};
use quick_xml::events::Event;
use quick_xml::{Reader, XmlVersion};
use zip::ZipArchive;

use super::page::{ACCEPTED, DOCX, MAX_ENTRIES, MAX_UNPACKED, Page, Refused, XLSX, refused};
use crate::domain::conversation::file::FileText;

const TOO_LARGE: &str = "the document is far larger unpacked than it looks";

/// Returns the media type and the text. Refuses archives that are neither, damaged, encrypted or too large.
pub(super) fn read(bytes: &[u8], most_chars: usize) -> Result<(&'static str, FileText), Refused> {
    let damaged = || Refused("the document is damaged: its archive cannot be read".to_owned());
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|_| damaged())?;
    if archive.len() > MAX_ENTRIES {
        return refused(format!("the document is made of {} files; at most {MAX_ENTRIES} are looked at", archive.len()));
    }
    let mut unpacked = 0_u64;
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index).map_err(|_| damaged())?;
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

/// Reads a Word document: a line for each paragraph, tabs between cells of tables.
fn words(archive: &mut ZipArchive<Cursor<&[u8]>>, most_chars: usize) -> Result<FileText, Refused> {
    let damaged = || Refused("the document is damaged: its text cannot be read".to_owned());
    let body = archive.by_name("word/document.xml").map_err(|_| damaged())?;
    // The archive may give a wrong size.
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

/// The widest gap between columns that is written in tabs. A wider one would use up the limit of the text.
const MAX_TABS: u32 = 64;

/// Reads a workbook: each sheet under its name, a line for each row, tabs between columns, from the first used column on. A cell after a
/// wide gap has its reference before it.
fn cells(bytes: &[u8], most_chars: usize) -> Result<FileText, Refused> {
    let damaged = || Refused("the workbook is damaged: it cannot be read".to_owned());
    let mut workbook: Xlsx<_> = Xlsx::new(Cursor::new(bytes)).map_err(|_| damaged())?;
    let mut page = Page::new(most_chars);
    for sheet in workbook.sheet_names() {
        let Ok(mut reader) = workbook.worksheet_cells_reader(&sheet) else { continue };
        if !page.add(&format!("## {sheet}\n")) {
            return Ok(page.finish());
        }
        // Cells come row by row, so the first column is known only after all of them. Cells beyond the limit are not read.
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
                // Cells out of order are separated, too.
                0..=MAX_TABS => {
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

/// Returns the name of a cell, such as `C7`.
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
