#!/bin/sh
# Starts one server of the three: ./start.sh data|sentinel [option…]
#
# NODE (and NODE_PORT) is where others find this server, PRIMARY (and PRIMARY_PORT) the one that leads
# at the very first start; who leads later is what Sentinels wrote into the folder DATA. Options of CONF
# win over what is in DATA, and options given here win over both.
set -eu
umask 077
role=$1
shift
DATA=${DATA:-/data} CONF=${CONF:-/etc/chasqui/server} SECRETS=${SECRETS:-/run/secrets/chasqui}
PRIMARY_PORT=${PRIMARY_PORT:-6379} QUORUM=${QUORUM:-2}
SERVER=${SERVER:-valkey-server}
cd "$DATA"

secret() { cat "$SECRETS/$1.password"; }

data() {
    NODE_PORT=${NODE_PORT:-6379}
    if [ ! -f node.conf ]; then
        [ "$NODE $NODE_PORT" = "$PRIMARY $PRIMARY_PORT" ] ||
            first_line="replicaof $PRIMARY $PRIMARY_PORT"
        echo "${first_line:-}" >node.conf
    fi
    # On stdin, because every user of the machine can read arguments.
    exec "$SERVER" "$DATA/node.conf" --dir "$DATA" --aclfile "$SECRETS/users.acl" \
        --tls-cert-file "$SECRETS/server.crt" --tls-key-file "$SECRETS/server.key" \
        --tls-ca-cert-file "$SECRETS/ca.crt" --replica-announce-ip "$NODE" \
        --replica-announce-port "$NODE_PORT" "$@" - <<END
$(cat "$CONF/valkey.conf")
masteruser replica
masterauth $(secret replica)
END
}

sentinel() {
    # Sentinels that do not agree at once try again after twice failover-timeout: about 20 s in all,
    # where the default would mean six minutes.
    if [ ! -f sentinel.conf ]; then
        cat "$CONF/sentinel.conf" - >sentinel.conf <<END
sentinel announce-ip $NODE
sentinel announce-port ${NODE_PORT:-26379}
sentinel monitor mymaster $PRIMARY $PRIMARY_PORT $QUORUM
sentinel auth-user mymaster sentinel
sentinel auth-pass mymaster $(secret sentinel)
sentinel down-after-milliseconds mymaster ${DOWN_AFTER_MS:-5000}
sentinel failover-timeout mymaster 6000
sentinel parallel-syncs mymaster 1
sentinel sentinel-user peer
sentinel sentinel-pass $(secret peer)
END
    fi
    exec "$SERVER" "$DATA/sentinel.conf" --sentinel --dir "$DATA" \
        --aclfile "$SECRETS/sentinel-users.acl" --tls-cert-file "$SECRETS/server.crt" \
        --tls-key-file "$SECRETS/server.key" --tls-ca-cert-file "$SECRETS/ca.crt" "$@"
}

"$role" "$@"
