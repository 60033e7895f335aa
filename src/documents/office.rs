//! The text of Word documents and Excel workbooks, which are ZIP archives of XML.

use std::io::{BufReader, Cursor, Read as _};

use calamine::{Data, DataRef, Reader as _, Xlsx};
use quick_xml::events::Event;
use quick_xml::{Reader, XmlVersion};
use zip::ZipArchive;

use super::{ACCEPTED, DOCX, MAX_ENTRIES, MAX_UNPACKED, Page, Refused, XLSX, refused};
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

/// Each sheet under its name, a row on each line, tabs between cells.
fn cells(bytes: &[u8], most_chars: usize) -> Result<FileText, Refused> {
    let damaged = || Refused("the workbook is damaged: it cannot be read".to_owned());
    let mut workbook: Xlsx<_> = Xlsx::new(Cursor::new(bytes)).map_err(|_| damaged())?;
    let mut page = Page::new(most_chars);
    for sheet in workbook.sheet_names() {
        let Ok(mut reader) = workbook.worksheet_cells_reader(&sheet) else { continue };
        if !page.add(&format!("## {sheet}\n")) {
            return Ok(page.finish());
        }
        let mut last: Option<(u32, u32)> = None;
        while let Some(cell) = reader.next_cell().map_err(|_| damaged())? {
            let (row, column) = cell.get_position();
            // However far apart two cells are: many empty ones between them say no more than one.
            let between = match last {
                None => "",
                Some((before, _)) if before != row => "\n",
                Some((_, before)) if column > before + 1 => "\t\t",
                Some(_) => "\t",
            };
            last = Some((row, column));
            if !(page.add(between) && page.add(&shown(cell.get_value()))) {
                return Ok(page.finish());
            }
        }
        if !page.add("\n") {
            break;
        }
    }
    Ok(page.finish())
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
