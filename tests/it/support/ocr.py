"""A server over stdio, made with the SDK for Python, that reads what pictures show. Here that stands behind a picture's signature."""
from mcp.server import MCPServer
from mcp_types import ToolAnnotations

SIGNATURE = b"\x89PNG\r\n\x1a\n"

server = MCPServer("ocr")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def extract_text_from_image(path: str) -> str:
    """Extracts the text that an image shows."""
    with open(path, "rb") as image:
        content = image.read()
    if not content.startswith(SIGNATURE):
        raise ValueError(f"{path} is no image")
    return content[len(SIGNATURE):].decode()


server.run()
