#!/bin/sh
# Puts an RDB dump into the empty folder of a node: ./restore.sh FILE FOLDER_OF_THE_NODE
#
# A server with `appendonly yes` reads its AOF and never the dump beside it: with a dump alone it
# would start empty. So the dump is loaded once without an AOF, and the AOF is made of it. Then start
# the node as ever. Nothing else may run on the folder.
set -eu
umask 077
file=$(cd "$(dirname "$1")" && pwd)/$(basename "$1") folder=$2
socket=$(mktemp -d)/socket
SERVER=${SERVER:-valkey-server}
cli() { ${VALKEY_CLI:-valkey-cli} -s "$socket" "$@"; }
field() { cli INFO persistence | tr -d '\r' | sed -n "s/^$1://p"; }

mkdir -p "$folder"
if [ -e "$folder/appendonlydir" ] || [ -e "$folder/dump.rdb" ]; then
    echo "error: $folder must hold no data, and has some; move it away first" >&2
    exit 1
fi
cp "$file" "$folder/dump.rdb"
"$SERVER" --port 0 --unixsocket "$socket" --unixsocketperm 700 --dir "$folder" --save '' \
    --appendonly no --maxmemory-policy noeviction --loglevel warning >/dev/null &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -rf "$(dirname "$socket")"' EXIT
until [ "$(field loading 2>/dev/null)" = 0 ]; do
    if ! kill -0 "$server" 2>/dev/null; then
        echo "error: $file must be an RDB dump that this version of the server can read" >&2
        rm "$folder/dump.rdb"
        exit 1
    fi
    sleep 0.2
done
cli CONFIG SET appendonly yes >/dev/null
# The manifest names a base file as soon as one has been written whole.
until grep -q 'type b' "$folder/appendonlydir/appendonly.aof.manifest" 2>/dev/null; do
    if [ "$(field aof_last_bgrewrite_status)" = err ]; then
        echo "error: $folder must have room for the append-only file, and it could not be written" >&2
        exit 1
    fi
    sleep 0.2
done
echo "$(cli DBSIZE) keys are restored in $folder"
kill "$server"
wait "$server" || true
trap - EXIT
rm -rf "$(dirname "$socket")"
