//! Type detection of uploaded files, and their text.

use capstan::documents::{self, DOCX, PDF, XLSX};

use support::documents::{
    PNG, archive, bomb, docx, encrypted_pdf, owned_pdf, pdf, pdf_with_a_foreign_font, word, workbook, xlsx, xlsx_of,
};

const MOST: usize = 1_000;

/// Returns media type and text.
fn read(bytes: &[u8], name: &str) -> (String, Option<String>) {
    let facts = documents::read(bytes, name, MOST, |_| {}).unwrap_or_else(|refused| panic!("{name}: {refused}"));
    (facts.media_type, facts.text.map(|text| text.words))
}

fn refusal(bytes: &[u8]) -> String {
    documents::read(bytes, "a.pdf", MOST, |_| {}).unwrap_err().to_string()
}

#[test]
fn a_file_is_what_its_bytes_say() {
    let jpeg = b"\xff\xd8\xff\xe0\0\x04\0\0\xff\xc0\0\x11\x08\0\x02\0\x03\x03\x01\x22\0\x02\x11\x01\x03\x11\x01\xff\xd9";
    let webp = b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\x01\x40\0\0\x07\x10\xfd\x8f\xfe\x07\x22\xa2\xff\x01";
    let gif = b"GIF89a\x03\0\x02\0\0\0\0;";
    for (bytes, media_type) in [(PNG, "image/png"), (jpeg, "image/jpeg"), (gif, "image/gif"), (webp, "image/webp")] {
        assert_eq!(read(bytes, "note.txt"), (media_type.to_owned(), None));
        // No provider accepts a file that only begins like an image, or has no size.
        assert!(refusal(&bytes[..12.min(bytes.len() - 8)]).contains("damaged"), "{media_type}");
    }
    assert!(refusal(b"GIF89a\0\0\x02\0\0\0\0;").contains("damaged"));
    // A truncated image still has its size in the header.
    for (bytes, kept) in [(PNG, PNG.len() - 8), (jpeg, jpeg.len() - 1), (webp, webp.len() - 2)] {
        assert_eq!(refusal(&bytes[..kept]), "the picture is damaged: its end is missing");
    }
    // The embedded thumbnail of a photo is complete, but says nothing about the photo.
    let scan = b"\xff\xda\0\x08\x01\x01\0\0\x3f\0\x12\xff\0\x34\xff\xd9";
    let small = [&jpeg[..jpeg.len() - 2], scan].concat();
    let length = u8::try_from(small.len() + 2).unwrap();
    let photo = [&jpeg[..2], &[0xff, 0xe1, 0, length], &small, &jpeg[8..jpeg.len() - 2], scan].concat();
    assert_eq!(read(&photo, "a.jpg").0, "image/jpeg");
    for kept in [photo.len() - 1, photo.len() - 4, photo.len() - scan.len(), photo.len() - scan.len() - 1] {
        assert_eq!(refusal(&photo[..kept]), "the picture is damaged: its end is missing", "{kept}");
    }
    for (name, media_type) in [
        ("a.md", "text/markdown"),
        ("a.CSV", "text/csv"),
        ("a.json", "application/json"),
        ("a.html", "text/plain"),
        ("a.png", "text/plain"),
    ] {
        assert_eq!(read("\u{feff}größe,1\n".as_bytes(), name), (media_type.to_owned(), Some("größe,1\n".to_owned())));
    }
}

#[test]
fn documents_give_their_text() {
    let (kind, words) = read(&pdf("The rent is due"), "x");
    assert_eq!((kind.as_str(), words.unwrap().trim()), (PDF, "The rent is due"));
    let (kind, words) = read(&docx(&["Größe &amp; Maß", "&#x1F600; second"]), "x");
    assert_eq!((kind.as_str(), words.as_deref()), (DOCX, Some("Größe & Maß\n😀 second")));
    let sheet = r#"<dimension ref="A1:XFD1048576"/><sheetData><row r="1"><c r="A1" t="inlineStr"><is><t>May</t></is></c><c r="B1"><v>12.5</v></c></row><row r="1048576"><c r="XFD1048576"><v>3</v></c></row></sheetData>"#;
    let (kind, words) = read(&xlsx(sheet), "x");
    assert_eq!(
        (kind.as_str(), words.as_deref()),
        (XLSX, Some("## Rent\nMay\t12.5\nXFD1048576: 3")),
        "however far apart its cells are"
    );
    // A scan has pages and no text.
    assert_eq!(read(&pdf(""), "x"), (PDF.to_owned(), None));
    // The code pages of such fonts are not supported. Models that read pages do not need them.
    assert_eq!(read(&pdf_with_a_foreign_font(), "x"), (PDF.to_owned(), None));
    // Text about PDFs is text.
    let notes = "A PDF begins with %PDF-1.7.";
    assert_eq!(read(notes.as_bytes(), "notes.md"), ("text/markdown".to_owned(), Some(notes.to_owned())));
}

#[test]
fn a_cell_stands_under_the_head_of_its_column() {
    let text = |cell: &str, words: &str| format!(r#"<c r="{cell}" t="inlineStr"><is><t>{words}</t></is></c>"#);
    let head: String =
        [("B2", "Name"), ("C2", "Jan"), ("D2", "Feb"), ("E2", "Mar")].map(|(cell, words)| text(cell, words)).concat();
    let rows = [
        format!(r#"<row r="2">{head}</row>"#),
        format!(r#"<row r="3">{}<c r="E3"><v>40</v></c></row>"#, text("B3", "Ada")),
        r#"<row r="4"><c r="D4"><v>7</v></c><c r="BP4"><v>8</v></c><c r="EC4"><v>9</v></c></row>"#.to_owned(),
    ];
    let (_, words) = read(&xlsx(&format!("<sheetData>{}</sheetData>", rows.concat())), "x");
    let far = format!("\t\t7{}8\tEC4: 9", "\t".repeat(64));
    assert_eq!(words.as_deref(), Some(format!("## Rent\nName\tJan\tFeb\tMar\nAda\t\t\t40\n{far}").as_str()));
}

#[test]
fn texts_are_cut_between_characters_and_say_so() {
    let long = "ü€😀".repeat(2_000);
    let sheet = format!(r#"<sheetData><row r="1"><c r="A1" t="inlineStr"><is><t>{long}</t></is></c></row></sheetData>"#);
    for bytes in [long.clone().into_bytes(), docx(&[&long]), xlsx(&sheet)] {
        let text = documents::read(&bytes, "x", MOST, |_| {}).unwrap().text.unwrap();
        assert!(text.is_cut && text.words.chars().count() == MOST, "{}", text.words.chars().count());
    }
    let text = documents::read(&pdf(&"word ".repeat(500)), "x", MOST, |_| {}).unwrap().text.unwrap();
    assert!(text.is_cut && text.words.chars().count() <= MOST);
    assert!(!documents::read(&docx(&["short"]), "x", MOST, |_| {}).unwrap().text.unwrap().is_cut);
}

#[test]
fn refused_file_names_its_reason() {
    let huge = workbook("<sheetData/>");
    let huge: Vec<(&str, &str)> = huge.iter().map(|(name, content)| (*name, content.as_str())).collect();
    let mut locked = docx(&["secret"]);
    for mark in [b"PK\x01\x02", b"PK\x03\x04"] {
        let flags = if mark[2] == 1 { 8 } else { 6 };
        for at in locked.windows(4).enumerate().filter(|(_, at)| at == mark).map(|(at, _)| at).collect::<Vec<_>>() {
            locked[at + flags] |= 1;
        }
    }
    for (bytes, why) in [
        (Vec::new(), "empty"),
        (b"MZ\x90\0\x03".to_vec(), "is not accepted; accepted are PNG"),
        (b"text with \0 in it".to_vec(), "is not accepted"),
        (b"\xff\xfeh\0\x01\0".to_vec(), "is not accepted"),
        (b"\xff\xfeh\0i".to_vec(), "is not accepted"),
        (b"Stra\xdfe, \x80 5".to_vec(), "not UTF-8: save it as UTF-8"),
        (archive(&[("a.txt", "hello")]), "neither a docx nor an xlsx document"),
        (b"PK\x03\x04 and no more".to_vec(), "damaged"),
        (b"%PDF-1.7\nnothing".to_vec(), "damaged"),
        (docx(&["<w:broken"]), "damaged"),
        (archive(&[("word/document.xml", "no XML at all")]), "damaged"),
        (archive(&[("xl/workbook.xml", "<workbook")]), "damaged"),
        (bomb(&huge), "the unpacked document is too large: 4294"),
        (locked, "encrypted"),
        (encrypted_pdf(), "needs a password"),
    ] {
        let words = refusal(&bytes);
        assert!(words.contains(why), "{why}: {words}");
    }
}

#[test]
fn word_table_row_is_one_line_with_tabs() {
    let cell = |words: &str| format!("<w:tc><w:tcPr/><w:p><w:r><w:t>{words}</w:t></w:r></w:p></w:tc>");
    let row = |cells: &[&str]| format!("<w:tr>{}</w:tr>", cells.iter().map(|words| cell(words)).collect::<String>());
    let two = "<w:tc><w:p><w:r><w:t>two</w:t></w:r></w:p><w:p><w:r><w:t>lines</w:t></w:r></w:p></w:tc>";
    let inner = format!("<w:tc><w:tbl>{}{}</w:tbl><w:p/></w:tc>", row(&["in", "ner"]), row(&["table"]));
    let rows = [row(&["a", "b", "c"]), row(&["d", "", "f"]), format!("<w:tr>{two}{inner}{}</w:tr>", cell("i"))].concat();
    let body = format!("<w:p><w:r><w:t>Before</w:t></w:r></w:p><w:tbl>{rows}</w:tbl><w:p><w:r><w:t>After</w:t></w:r></w:p>");
    let (_, text) = read(&word(&body, &[]), "x");
    assert_eq!(text.as_deref(), Some("Before\na\tb\tc\nd\t\tf\ntwo lines\tin ner table\ti\nAfter"));
}

#[test]
fn word_document_is_read_with_all_its_parts_once() {
    let paragraph = |words: &str| format!("<w:p><w:r><w:t>{words}</w:t></w:r></w:p>");
    let boxed = paragraph("boxed");
    let body = format!(
        "<w:p><w:r><w:t>Text</w:t></w:r><w:r><w:footnoteReference w:id=\"2\"/></w:r></w:p>\
         <w:p><w:r><mc:AlternateContent><mc:Choice><w:txbxContent>{boxed}</w:txbxContent></mc:Choice>\
         <mc:Fallback><w:txbxContent>{boxed}</w:txbxContent></mc:Fallback></mc:AlternateContent></w:r></w:p>"
    );
    let separator = "<w:footnote w:type=\"separator\" w:id=\"-1\"><w:p><w:r><w:separator/></w:r></w:p></w:footnote>";
    let notes = format!("{separator}<w:footnote w:id=\"2\">{}</w:footnote>", paragraph("a note"));
    let head = paragraph("Head");
    let bytes = word(
        &body,
        &[
            ("word/header1.xml", "hdr", &head),
            ("word/header2.xml", "hdr", &head),
            ("word/footnotes.xml", "footnotes", &notes),
            ("word/footer1.xml", "ftr", &paragraph("Foot")),
            ("word/footer2.xml", "ftr", "<w:broken"),
        ],
    );
    let text = read(&bytes, "x").1.unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines, ["Head", "Text[^2]", "boxed", "[^2]: a note", "Foot"], "{text}");
}

#[test]
fn formula_without_value_is_shown_as_formula() {
    let sheet = r#"<sheetData><row r="1"><c r="A1"><v>2</v></c><c r="B1"><f>A1*3</f><v></v></c><c r="C1"><f>A1+1</f><v>3</v></c></row><row r="2"><c r="A2"><f>SUM(A1:B1)</f></c></row></sheetData>"#;
    assert_eq!(read(&xlsx(sheet), "x").1.as_deref(), Some("## Rent\n2\t=A1*3\t3\n=SUM(A1:B1)"));
}

#[test]
fn times_and_hidden_sheets_are_marked() {
    let cell = |at: &str, style: u32, value: &str| format!(r#"<c r="{at}" s="{style}"><v>{value}</v></c>"#);
    let cells = [cell("A1", 1, "0.5"), cell("B1", 2, "1.5"), cell("C1", 3, "45000"), cell("D1", 0, "0.5")].concat();
    let bytes = xlsx_of(&format!(r#"<sheetData><row r="1">{cells}</row></sheetData>"#), r#"state="hidden""#, &[20, 46, 14]);
    assert_eq!(read(&bytes, "x").1.as_deref(), Some("## Rent (hidden)\n12:00:00\t36:00:00\t2023-03-15\t0.5"));
}

#[test]
fn pdf_with_owner_password_only_is_read() {
    let (kind, text) = read(&owned_pdf("The rent is due"), "x");
    assert_eq!((kind.as_str(), text.unwrap().trim()), (PDF, "The rent is due"));
}

#[test]
fn utf16_text_with_byte_order_mark_is_read() {
    let units: Vec<u16> = "größe,1\n".encode_utf16().collect();
    let little: Vec<u8> = [0xff, 0xfe].into_iter().chain(units.iter().flat_map(|unit| unit.to_le_bytes())).collect();
    let big: Vec<u8> = [0xfe, 0xff].into_iter().chain(units.iter().flat_map(|unit| unit.to_be_bytes())).collect();
    for bytes in [little, big] {
        assert_eq!(read(&bytes, "a.csv"), ("text/csv".to_owned(), Some("größe,1\n".to_owned())));
    }
}
