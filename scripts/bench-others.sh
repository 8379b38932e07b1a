#!/usr/bin/env bash
# Measures this machine's disk path and Redis beside `conclave bench`, all durable, in turns, so that they can be compared.
#
#   scripts/bench-others.sh [ROUNDS] [CONCLAVE]      default: 3 rounds, target/release/conclave
#
# Redis is Debian's `redis-server` (appendonly yes, appendfsync always). Its pair is two writes: a SET (acquire) and a script that
# compares the holder and writes (release). redis-benchmark measures one command at a time, so a pair takes the sum of
# both times: pairs/s = 1 / (1/sets + 1/releases).
set -euo pipefail

rounds=${1:-3}
conclave=${2:-target/release/conclave}
clients=64
seconds=2

for tool in redis-server redis-benchmark; do
    command -v "$tool" >/dev/null || { echo "needs $tool: apt-get install redis-server redis-tools" >&2; exit 1; }
done
[ -x "$conclave" ] || { echo "needs $conclave: cargo build --release -p conclave" >&2; exit 1; }

folder=$(mktemp -d)
redis_port=7698
conclave_port=7699
redis-server --port $redis_port --dir "$folder" --appendonly yes --appendfsync always --save "" >"$folder/redis.log" &
redis=$!
"$conclave" serve --data "$folder/conclave" --listen 127.0.0.1:$conclave_port >"$folder/conclave.log" &
server=$!
# Both were started here, and are stopped by their numbers.
trap 'kill $redis $server 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
until redis-cli -p $redis_port ping >/dev/null 2>&1; do sleep 0.1; done
until grep -q $conclave_port "$folder/conclave.log"; do sleep 0.1; done

release="if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('set',KEYS[1],ARGV[1]) end return 0"
bench() { "$conclave" bench --server 127.0.0.1:$conclave_port --seconds $seconds --json "$@" | tr -d ' ",' |
    awk -F: '/^pairs_per_s/ {p=$2} /^acquire_p50/ {m=$2} /^acquire_p99_us/ {n=$2} /^fairness/ {f=$2} /^violations/ {v=$2}
             END {printf "%9.0f pairs/s  p50 %6.0f us  p99 %6.0f us  fairness %.3f  violations %d\n", p, m, n, f, v}'; }

for round in $(seq "$rounds"); do
    sets=$(redis-benchmark -p $redis_port -c $clients -n 50000 --csv SET lock:held token PX 100000 | tail -1 | cut -d, -f2 | tr -d '"')
    releases=$(redis-benchmark -p $redis_port -c $clients -n 50000 --csv EVAL "$release" 1 lock:held token | tail -1 |
        awk -F'","' '{print $2}')
    echo "round $round"
    awk -v a="$sets" -v b="$releases" 'BEGIN {printf "  redis, fsync always, 64 clients %9.0f pairs/s  (%.0f sets/s, %.0f releases/s)\n", 1/(1/a+1/b), a, b}'
    printf '  conclave, 64 clients           '; bench --clients $clients
    printf '  conclave, 1 connection, 64     '; bench --clients 1 --connections 1 --in-flight 64
    printf '  conclave, 16 clients, 1 name   '; bench --clients 16 --workload contended
    printf '  conclave, 1 client             '; bench --clients 1
done
