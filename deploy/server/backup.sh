#!/bin/sh
# Copies what a node has to FILE, as an RDB dump: ./backup.sh FOLDER_OF_THE_NODE FILE
#
# VALKEY_CLI is the client with its options, the user `backup` for instance. Run it on a replica, so
# that the primary does not pay for the fork. The node goes on meanwhile, and FILE is either whole or
# not there.
set -eu
umask 077
folder=$1 file=$2
cli() { ${VALKEY_CLI:-valkey-cli} "$@"; }
field() { cli INFO persistence | tr -d '\r' | sed -n "s/^$1://p"; }

# A save is counted when it begins.
before=$(field rdb_saves)
if [ -z "$before" ]; then
    echo "error: a server of version 7 or newer must answer to ${VALKEY_CLI:-valkey-cli}, and none did" >&2
    exit 1
fi
cli BGSAVE SCHEDULE >/dev/null
until [ "$(field rdb_saves)" != "$before" ] && [ "$(field rdb_bgsave_in_progress)" = 0 ]; do
    sleep 0.2
done
if [ "$(field rdb_last_bgsave_status)" != ok ]; then
    echo "error: the node must be able to save, and its last BGSAVE failed; see its log" >&2
    exit 1
fi
cp "$folder/dump.rdb" "$file.part"
sync "$file.part"
mv "$file.part" "$file"
