//! Documents, made byte by byte.

use std::io::{Cursor, Write as _};

use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// A picture of one pixel.
pub const PNG: &[u8] =
    b"\x89PNG\x0d\x0a\x1a\x0a\x00\x00\x00\x0dIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89\x00\x00\
\x00\x0dIDATx\xdacd`\xf8_\x0f\x00\x02\x87\x01\x80\xebG\xba\x92\x00\x00\x00\x00IEND\xaeB`\x82";

/// An archive of these files.
pub fn archive(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in files {
        archive.start_file(*name, SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored)).unwrap();
        archive.write_all(content.as_bytes()).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// The same, where the first file says that it unpacks to 4 GB.
pub fn bomb(files: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = archive(files);
    let at = bytes.windows(4).position(|at| at == b"PK\x01\x02").unwrap();
    bytes[at + 24..at + 28].copy_from_slice(&[0xf0, 0xff, 0xff, 0xff]);
    bytes
}

/// A Word document of these paragraphs.
pub fn docx(paragraphs: &[&str]) -> Vec<u8> {
    word(&paragraphs.iter().map(|words| format!("<w:p><w:r><w:t>{words}</w:t></w:r></w:p>")).collect::<String>(), &[])
}

/// A Word document with this body and other parts: the name, the root element and its content.
pub fn word(body: &str, parts: &[(&str, &str, &str)]) -> Vec<u8> {
    let root = |name: &str, content: &str| {
        format!(
            r#"<?xml version="1.0" encoding="UTF-8"?><w:{name} xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">{content}</w:{name}>"#
        )
    };
    let document = root("document", &format!("<w:body>{body}</w:body>"));
    let parts: Vec<(&str, String)> = parts.iter().map(|(file, name, content)| (*file, root(name, content))).collect();
    let mut files = vec![("[Content_Types].xml", "<Types/>"), ("word/document.xml", &*document)];
    files.extend(parts.iter().map(|(file, content)| (*file, content.as_str())));
    archive(&files)
}

/// The files of a workbook with one sheet, of which this is the inside.
pub fn workbook(sheet: &str) -> Vec<(&'static str, String)> {
    let main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main";
    let relations = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
    let kept = "http://schemas.openxmlformats.org/package/2006/relationships";
    let kept_as = |kind: &str, target: &str| {
        format!(
            r#"<?xml version="1.0"?><Relationships xmlns="{kept}"><Relationship Id="rId1" Type="{relations}/{kind}" Target="{target}"/></Relationships>"#
        )
    };
    vec![
        ("xl/worksheets/sheet1.xml", format!(r#"<?xml version="1.0"?><worksheet xmlns="{main}">{sheet}</worksheet>"#)),
        (
            "xl/workbook.xml",
            format!(
                r#"<?xml version="1.0"?><workbook xmlns="{main}" xmlns:r="{relations}"><sheets><sheet name="Rent" sheetId="1" r:id="rId1"/></sheets></workbook>"#
            ),
        ),
        ("xl/_rels/workbook.xml.rels", kept_as("worksheet", "worksheets/sheet1.xml")),
        ("_rels/.rels", kept_as("officeDocument", "xl/workbook.xml")),
    ]
}

/// A workbook.
pub fn xlsx(sheet: &str) -> Vec<u8> {
    let files = workbook(sheet);
    archive(&files.iter().map(|(name, content)| (*name, content.as_str())).collect::<Vec<_>>())
}

/// A workbook whose sheet has this state, and whose cells have these number formats as styles 1 and up.
pub fn xlsx_of(sheet: &str, state: &str, formats: &[u32]) -> Vec<u8> {
    let mut files = workbook(sheet);
    let formats: String = formats.iter().map(|id| format!(r#"<xf numFmtId="{id}" applyNumberFormat="1"/>"#)).collect();
    let main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main";
    let styles =
        format!(r#"<?xml version="1.0"?><styleSheet xmlns="{main}"><cellXfs><xf numFmtId="0"/>{formats}</cellXfs></styleSheet>"#);
    files[1].1 = files[1].1.replace("<sheet name", &format!("<sheet {state} name"));
    files.push(("xl/styles.xml", styles));
    archive(&files.iter().map(|(name, content)| (*name, content.as_str())).collect::<Vec<_>>())
}

/// A PDF of these objects, the first of which is its catalogue.
pub fn pdf_of(objects: &[String], trailer: &str) -> Vec<u8> {
    let mut out = "%PDF-1.4\n".to_owned();
    let mut places = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        places.push(out.len());
        out.push_str(&format!("{} 0 obj\n{object}\nendobj\n", index + 1));
    }
    let table = out.len();
    out.push_str(&format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1));
    for place in places {
        out.push_str(&format!("{place:010} 00000 n \n"));
    }
    out.push_str(&format!("trailer\n<< /Size {} /Root 1 0 R {trailer} >>\nstartxref\n{table}\n%%EOF\n", objects.len() + 1));
    out.into_bytes()
}

/// The objects of a PDF of one page, which this draws, with more for its resources.
pub fn page(draws: &str, resources: &str) -> Vec<String> {
    vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> {resources} >> >>"
        ),
        format!("<< /Length {} >>\nstream\n{draws}\nendstream", draws.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_owned(),
    ]
}

/// A PDF that says this.
pub fn pdf(words: &str) -> Vec<u8> {
    pdf_of(&page(&format!("BT /F1 24 Tf 20 100 Td ({words}) Tj ET"), ""), "")
}

/// A PDF whose page draws something that draws itself.
pub fn endless_pdf() -> Vec<u8> {
    let mut objects = page("/X Do", "/XObject << /X 6 0 R >>");
    objects.push(
        "<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 6 0 R >> >> /Length 11 >>\nstream\n/X Do /X Do\nendstream"
            .to_owned(),
    );
    pdf_of(&objects, "")
}

/// A PDF whose font has one of the code pages of East Asia.
pub fn pdf_with_a_foreign_font() -> Vec<u8> {
    let mut objects = page("BT /F2 24 Tf 20 100 Td (Hello) Tj ET", "");
    objects[2] = objects[2].replace("/F1 5 0 R", "/F2 6 0 R");
    objects.push("<< /Type /Font /Subtype /Type0 /BaseFont /A /Encoding /UniGB-UCS2-H /DescendantFonts [7 0 R] >>".to_owned());
    let system = "<< /Registry (Adobe) /Ordering (GB1) /Supplement 2 >>";
    objects.push(format!("<< /Type /Font /Subtype /CIDFontType2 /BaseFont /A /CIDSystemInfo {system} >>"));
    pdf_of(&objects, "")
}

/// A PDF that wants a password.
pub fn encrypted_pdf() -> Vec<u8> {
    let mut objects = page("BT /F1 24 Tf (secret) Tj ET", "");
    let word = "00".repeat(32);
    objects.push(format!("<< /Filter /Standard /V 1 /R 2 /O <{word}> /U <{word}> /P -4 >>"));
    pdf_of(&objects, "/Encrypt 6 0 R /ID [<00112233445566778899aabbccddeeff> <00112233445566778899aabbccddeeff>]")
}

/// A PDF that opens without a password, and only its owner may change.
pub fn owned_pdf(words: &str) -> Vec<u8> {
    use pdf_extract::{Document, EncryptionState, EncryptionVersion, Permissions};
    let id = "<00112233445566778899aabbccddeeff>";
    let plain = pdf_of(&page(&format!("BT /F1 24 Tf 20 100 Td ({words}) Tj ET"), ""), &format!("/ID [{id} {id}]"));
    let mut document = Document::load_mem(&plain).unwrap();
    let wanted = EncryptionVersion::V2 {
        document: &document,
        owner_password: "owner",
        user_password: "",
        key_length: 128,
        permissions: Permissions::PRINTABLE,
    };
    let state = EncryptionState::try_from(wanted).unwrap();
    document.encrypt(&state).unwrap();
    let mut bytes = Vec::new();
    document.save_to(&mut bytes).unwrap();
    bytes
}
