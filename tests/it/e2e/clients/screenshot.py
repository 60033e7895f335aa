"""An MCP server whose only tool takes a screenshot: a PNG of three megabytes. Standard library only."""
import base64
import json
import random
import struct
import sys
import zlib

WIDTH = 1024
HEIGHT = 1024


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def picture():
    noise = random.Random(1)
    rows = b"".join(b"\0" + noise.randbytes(3 * WIDTH) for _ in range(HEIGHT))
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")


def result(method, params):
    if method == "initialize":
        server = {"name": "screen", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": [{"name": "shoot", "description": "Takes a screenshot", "inputSchema": {"type": "object"}}]}
    if method == "tools/call":
        image = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(picture()).decode()}
        return {"content": [{"type": "text", "text": "the screen"}, image]}
    return None


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request or "method" not in request:
        continue
    found = result(request["method"], request.get("params", {}))
    outcome = {"error": {"code": -32601, "message": "no such method"}} if found is None else {"result": found}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}) + "\n")
    sys.stdout.flush()
