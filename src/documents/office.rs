//! Reads the text of Word documents and Excel workbooks, which are ZIP archives of XML.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{BufReader, Cursor, Read as _};

use calamine::{Data, DataRef, Reader as _, SheetVisible, Xlsx, XlsxError};
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use zip::ZipArchive;

use super::page::{ACCEPTED, DOCX, MAX_ENTRIES, MAX_UNPACKED, Page, RefusedFile, XLSX, refused};
use crate::domain::conversation::FileText;
use crate::support::text::prefix_chars;

const TOO_LARGE: &str = "the unpacked document is too large";

/// Returns the media type and the text. Refuses other archives, and those that are damaged, encrypted or too large.
pub(super) fn read(bytes: &[u8], most_chars: usize) -> Result<(&'static str, FileText), RefusedFile> {
    let damaged = || RefusedFile("the document is damaged: its archive cannot be read".to_owned());
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|_| damaged())?;
    if archive.len() > MAX_ENTRIES {
        return refused(format!("the document consists of {} files; at most {MAX_ENTRIES} are read", archive.len()));
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
        return refused(format!("{TOO_LARGE}: {unpacked} bytes; the limit is {MAX_UNPACKED}"));
    }
    if archive.index_for_name("word/document.xml").is_some() {
        return Ok((DOCX, read_word(&mut archive, most_chars)?));
    }
    if archive.index_for_name("xl/workbook.xml").is_some() {
        return Ok((XLSX, cells(bytes, most_chars)?));
    }
    refused(format!("the file is an archive that is neither a docx nor an xlsx document; accepted are {ACCEPTED}"))
}

/// Reads a Word document: headers, the body, footnotes, endnotes and footers. Headers and footers that say the same come once.
fn read_word(archive: &mut ZipArchive<Cursor<&[u8]>>, most_chars: usize) -> Result<FileText, RefusedFile> {
    let mut names: Vec<String> = archive.file_names().flatten().map(Cow::into_owned).collect();
    names.sort_by(|one, other| (one.len(), one).cmp(&(other.len(), other)));
    let named = |stem: &'static str| {
        let is_named =
            move |name: &&String| name.strip_prefix("word/").is_some_and(|name| name.starts_with(stem)) && name.ends_with(".xml");
        names.iter().filter(is_named).cloned()
    };
    let body = "word/document.xml";
    let before = named("header").chain([body.to_owned()]);
    let parts: Vec<String> = before.chain(named("footnotes")).chain(named("endnotes")).chain(named("footer")).collect();
    let mut page = Page::new(most_chars);
    let mut read: Vec<String> = Vec::new();
    for name in parts {
        let text = match word_part(archive, &name, most_chars) {
            Ok(text) => text,
            Err(refused) if name == body => return Err(refused),
            Err(_) => continue,
        };
        let words = text.words.trim_start_matches('\n').to_owned();
        if words.is_empty() || (name != body && read.contains(&words)) {
            continue;
        }
        let has_room = (read.is_empty() || page.add("\n")) && page.add(&words);
        if text.is_cut || !has_room {
            return Ok(FileText { is_cut: true, ..page.finish() });
        }
        read.push(words);
    }
    Ok(page.finish())
}

/// Reads a part of a Word document: a line for each paragraph, and for each row of a table, with tabs between its cells.
fn word_part(archive: &mut ZipArchive<Cursor<&[u8]>>, name: &str, most_chars: usize) -> Result<FileText, RefusedFile> {
    let damaged = || RefusedFile("the document is damaged: its text cannot be read".to_owned());
    let file = archive.by_name(name).map_err(|_| damaged())?;
    // The archive may declare a wrong size.
    let mut reader = Reader::from_reader(BufReader::new(file.take(MAX_UNPACKED)));
    let mut lines = Lines { page: Page::new(most_chars), rows: Vec::new(), between: None };
    let (mut buffer, mut in_text, mut is_word, mut within_fallback) = (Vec::new(), false, false, 0_usize);
    loop {
        buffer.clear();
        let event = reader.read_event_into(&mut buffer).map_err(|_| damaged())?;
        let has_room = match &event {
            // A text box is stored twice: for this version of Word, and as a fallback for older ones.
            Event::Start(tag) if tag.local_name().as_ref() == "Fallback" => {
                within_fallback += 1;
                true
            }
            Event::End(tag) if tag.local_name().as_ref() == "Fallback" => {
                within_fallback = within_fallback.saturating_sub(1);
                true
            }
            _ if within_fallback > 0 && event != Event::Eof => true,
            Event::Start(tag) => {
                let local = tag.local_name();
                in_text = local.as_ref() == "t";
                is_word |= matches!(local.as_ref(), "document" | "hdr" | "ftr" | "footnotes" | "endnotes");
                match local.as_ref() {
                    "tr" => lines.begin_row(),
                    "tc" => lines.begin_cell(),
                    "txbxContent" => lines.end_paragraph(),
                    "footnote" | "endnote" => lines.add(&tag_id(tag).map(|id| format!("[^{id}]: ")).unwrap_or_default()),
                    _ => true,
                }
            }
            Event::Empty(tag) => match tag.local_name().as_ref() {
                "tab" => lines.add(if lines.rows.is_empty() { "\t" } else { " " }),
                "br" | "cr" => lines.end_paragraph(),
                "noBreakHyphen" => lines.add("-"),
                "tc" => lines.begin_cell(),
                "footnoteReference" | "endnoteReference" => {
                    lines.add(&tag_id(tag).map(|id| format!("[^{id}]")).unwrap_or_default())
                }
                _ => true,
            },
            Event::End(tag) => {
                in_text = false;
                match tag.local_name().as_ref() {
                    "p" => lines.end_paragraph(),
                    "tr" => lines.end_row(),
                    _ => true,
                }
            }
            Event::Text(text) if in_text => lines.add(&text.xml_content(XmlVersion::Explicit1_0)),
            Event::GeneralRef(reference) if in_text => match reference.resolve_char_ref().ok().flatten() {
                Some(c) => lines.add(c.encode_utf8(&mut [0; 4])),
                None => lines.add(match reference.as_ref() {
                    "amp" => "&",
                    "lt" => "<",
                    "gt" => ">",
                    "quot" => "\"",
                    "apos" => "'",
                    _ => "\u{fffd}",
                }),
            },
            Event::Eof => break,
            _ => true,
        };
        if !has_room {
            break;
        }
    }
    if is_word { Ok(lines.page.finish()) } else { Err(damaged()) }
}

/// Returns the id of a note that a reader can see. Separators have a type.
fn tag_id(tag: &BytesStart<'_>) -> Option<String> {
    let attribute = |name: &str| {
        tag.attributes().flatten().find(|attribute| attribute.key.local_name().as_ref() == name).map(|attribute| attribute.value)
    };
    if attribute("type").is_some() {
        return None;
    }
    attribute("id").map(|id| prefix_chars(&id, 20).to_owned())
}

/// Lines of a text. A row of a table is one line, however long its cells are.
struct Lines {
    page: Page,
    /// The number of cells begun in each open row, outermost first.
    rows: Vec<usize>,
    /// A break that is written before the next text only, within a cell.
    between: Option<&'static str>,
}

impl Lines {
    fn add(&mut self, words: &str) -> bool {
        if words.is_empty() {
            return true;
        }
        let between = self.between.take().unwrap_or_default();
        self.page.add(between) && self.page.add(words)
    }

    fn end_paragraph(&mut self) -> bool {
        if self.rows.is_empty() {
            return self.page.add("\n");
        }
        self.between = Some(self.between.unwrap_or(" "));
        true
    }

    fn begin_row(&mut self) -> bool {
        self.rows.push(0);
        true
    }

    /// Tables within a cell are written as its words.
    fn begin_cell(&mut self) -> bool {
        let is_outermost = self.rows.len() == 1;
        let Some(cells) = self.rows.last_mut() else { return true };
        *cells += 1;
        if *cells == 1 {
            // The row begins a line, or follows other words of its cell.
            return true;
        }
        if !is_outermost {
            return self.end_paragraph();
        }
        self.between = None;
        self.page.add("\t")
    }

    fn end_row(&mut self) -> bool {
        self.rows.pop();
        if self.rows.is_empty() {
            self.between = None;
        }
        self.end_paragraph()
    }
}

/// The widest gap between columns that is written as tabs. Wider gaps would use up the limit of the text.
const MAX_TABS: u32 = 64;

/// Reads a workbook: each sheet after its name, one line for each row, tabs between columns, starting at the first used column.
/// After a wide gap, the cell's reference precedes its text.
fn cells(bytes: &[u8], most_chars: usize) -> Result<FileText, RefusedFile> {
    let damaged = || RefusedFile("the workbook is damaged: it cannot be read".to_owned());
    let mut workbook: Xlsx<_> = Xlsx::new(Cursor::new(bytes)).map_err(|_| damaged())?;
    let mut page = Page::new(most_chars);
    for sheet in workbook.sheets_metadata().to_vec() {
        let hidden = if sheet.visible == SheetVisible::Visible { "" } else { " (hidden)" };
        let sheet = sheet.name;
        let Ok(mut reader) = workbook.worksheet_cells_reader(&sheet) else { continue };
        if !page.add(&format!("## {sheet}{hidden}\n")) {
            return Ok(page.finish());
        }
        // The first column is known only after all cells, because cells are read row by row. Cells beyond the limit are not read.
        let (mut found, mut chars) = (Vec::new(), 0_usize);
        while chars <= most_chars.saturating_add(1)
            && let Some(cell) = reader.next_cell().map_err(|_| damaged())?
        {
            let value = cell_text(cell.get_value());
            if value.is_empty() {
                continue;
            }
            chars = chars.saturating_add(value.chars().count()).saturating_add(1);
            found.push((cell.get_position(), value));
        }
        drop(reader);
        let read_to = found.last().map(|(at, _)| *at).filter(|_| chars > most_chars);
        // Values are worth more than formulas: those that cannot be read are left out.
        let _ = add_formulas(&mut workbook, &sheet, &mut found, read_to, most_chars);
        found.sort_by_key(|(at, _)| *at);
        let first = found.iter().map(|((_, column), _)| *column).min().unwrap_or(0);
        let mut last: Option<(u32, u32)> = None;
        for ((row, column), value) in found {
            let is_next_line = last.is_some_and(|(before, _)| before != row);
            let from = last.filter(|_| !is_next_line).map_or(first, |(_, before)| before);
            let gap = column.saturating_sub(from);
            let line = if is_next_line { "\n" } else { "" };
            let between = match gap {
                // Cells may be out of order: they are separated too.
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

type FoundCell = ((u32, u32), String);

/// Adds the formulas of cells without a value: programs that write a workbook without calculating it store nothing else. No cell
/// beyond `read_to` is added.
fn add_formulas(
    workbook: &mut Xlsx<Cursor<&[u8]>>,
    sheet: &str,
    found: &mut Vec<FoundCell>,
    read_to: Option<(u32, u32)>,
    most_chars: usize,
) -> Result<(), XlsxError> {
    let valued: HashSet<(u32, u32)> = found.iter().map(|(at, _)| *at).collect();
    let mut reader = workbook.worksheet_cells_reader(sheet)?;
    let mut chars = 0_usize;
    while chars <= most_chars
        && let Some(cell) = reader.next_formula()?
    {
        let (at, formula) = (cell.get_position(), cell.get_value());
        if read_to.is_some_and(|end| at > end) {
            break;
        }
        if !formula.is_empty() && !valued.contains(&at) {
            chars = chars.saturating_add(formula.chars().count()).saturating_add(2);
            found.push((at, format!("={formula}")));
        }
    }
    Ok(())
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

fn cell_text(value: &DataRef<'_>) -> String {
    match value {
        DataRef::DateTime(when) if when.is_duration() || (0.0..1.0).contains(&when.as_f64()) => {
            let seconds = (when.as_f64() * 86_400.0).round();
            let sign = if seconds < 0.0 { "-" } else { "" };
            // A cast saturates, and durations are shorter than that.
            let seconds = seconds.abs() as u64;
            format!("{sign}{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
        }
        DataRef::DateTime(when) if when.is_datetime() => {
            let (year, month, day, hour, minute, second, _) = when.to_ymd_hms_milli();
            format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}").trim_end_matches(" 00:00:00").to_owned()
        }
        other => Data::from(other.clone()).to_string(),
    }
}
