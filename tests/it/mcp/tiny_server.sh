# An MCP server that a shell alone can be: it tells what it sees of the place that it is in.

look() {
    touch /mark 2>/dev/null && root=writable || root=read-only
    touch /tmp/mark && tmp=writable || tmp=read-only
    also=
    for folder in /data /run /var/tmp; do touch "$folder/mark" 2>/dev/null && also="$also$folder,"; done
    docs=$(cat /docs/note 2>/dev/null)
    touch /docs/mark 2>/dev/null && mount=writable || mount=read-only
    echo "token=$TOKEN letters=$(echo "$TOKEN" | tr a-z A-Z) host=$HOST_SECRET root=$root tmp=$tmp also=$also; net=$(ls /sys/class/net | tr '\n' ',') docs=$docs/$mount" \
        "caps=$(sed -n 's/^CapEff:[^0-9a-f]*//p' /proc/self/status) arg=$1"
}

trap '' TERM
while read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
    case $line in
    *'"method":"initialize"'*)
        result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"tiny","version":"1"}}' ;;
    *'"method":"tools/list"'*)
        result='{"tools":[{"name":"look","inputSchema":{"type":"object"}},{"name":"stay","inputSchema":{"type":"object"}}]}' ;;
    *'"name":"look"'*)
        result="{\"content\":[{\"type\":\"text\",\"text\":\"$(look "$1")\"}]}" ;;
    # Hears nothing any more, neither the end of its input nor TERM.
    *'"name":"stay"'*)
        while :; do sleep 1; done ;;
    *) continue ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
