#!/bin/sh
# Makes what the servers of this folder keep secret: ./make-secrets.sh FOLDER HOST…
#
# FOLDER gets a password for each user, both ACL files with the hashes of these passwords, an
# authority and a certificate that names every HOST, `url`, which workers connect by, and
# `exporter.json`. Passwords and certificates that are there are kept: remove one, and run this again,
# to have it made again.
set -eu
umask 027
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 2 ] || { echo "usage: $0 FOLDER HOST…" >&2; exit 2; }
folder=$1
shift
mkdir -p "$folder"

for user in worker producer exporter keda replica sentinel backup admin client peer; do
    [ -s "$folder/$user.password" ] || openssl rand -hex 24 >"$folder/$user.password"
done

for acl in users.acl sentinel-users.acl; do
    cp "$here/$acl" "$folder/$acl.new"
    for password in "$folder"/*.password; do
        user=$(basename "$password" .password)
        hash=$(tr -d '\n' <"$password" | openssl dgst -sha256 -r | cut -d ' ' -f 1)
        sed -i.old "s/#@$user@/#$hash/" "$folder/$acl.new"
    done
    rm "$folder/$acl.new.old"
    mv "$folder/$acl.new" "$folder/$acl"
done

names=$(for host in "$@"; do
    case $host in
    *[!0-9.]*) printf ',DNS:%s' "$host" ;;
    *) printf ',IP:%s' "$host" ;;
    esac
done)
key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
# shellcheck disable=SC2086
[ -s "$folder/ca.crt" ] || openssl req -x509 $key -days 3650 -subj "/CN=chasqui servers" \
    -addext keyUsage=critical,keyCertSign -keyout "$folder/ca.key" -out "$folder/ca.crt" 2>/dev/null
# shellcheck disable=SC2086
if [ ! -s "$folder/server.crt" ]; then
    openssl req -new $key -subj "/CN=$1" -addext "subjectAltName=${names#,}" \
        -keyout "$folder/server.key" -out "$folder/server.csr" 2>/dev/null
    openssl x509 -req -in "$folder/server.csr" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" \
        -CAcreateserial -days 397 -copy_extensions copy -out "$folder/server.crt" 2>/dev/null
    rm "$folder/server.csr"
fi

# For every host that is none of Sentinels, as redis_exporter looks it up.
{
    printf '{'
    comma=
    for host in "$@"; do
        case $host in sentinel*) continue ;; esac
        printf '%s\n  "rediss://exporter@%s:6379": "%s"' "$comma" "$host" "$(cat "$folder/exporter.password")"
        comma=,
    done
    printf '\n}\n'
} >"$folder/exporter.json"

sentinels=$(for host in "$@"; do
    case $host in sentinel*) printf ',%s:26379' "$host" ;; esac
done)
printf 'rediss+sentinel://worker:%s@%s/mymaster/0?sentinel_username=client&sentinel_password=%s&ssl_ca_certs=%s\n' \
    "$(cat "$folder/worker.password")" "${sentinels#,}" "$(cat "$folder/client.password")" \
    /etc/chasqui/tls/ca.crt >"$folder/url"
