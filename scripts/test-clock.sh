#!/usr/bin/env bash
# Tests `conclave clock` against chrony on loopback, in both roles: as a client of a chronyd whose clock is an hour ahead, and as a
# server, with a clock some seconds behind, for chronyd as the client.
#
#   scripts/test-clock.sh                        builds and tests target/debug/conclave
#   CONCLAVE=/path/conclave scripts/test-clock.sh   tests that binary
#
# The script installs the Debian packages chrony and faketime if they are missing, which needs root or sudo. It never changes the system
# clock: chronyd runs with -x or -Q, and the offsets come from faketime. At the end the script checks that the clock was not changed.
set -euo pipefail
cd "$(dirname "$0")/.."

sudo=$([ "$(id -u)" = 0 ] || echo sudo)
if ! command -v faketime >/dev/null || ! [ -x /usr/sbin/chronyd ]; then
    # Prevent the package from starting chronyd, which would adjust the system clock.
    policy=/usr/sbin/policy-rc.d
    if [ -e "$policy" ]; then
        policy=
    else
        printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
        $sudo chmod +x "$policy"
        trap '$sudo rm -f "$policy"' EXIT
    fi
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chrony faketime >/dev/null
    if [ -n "$policy" ]; then $sudo rm -f "$policy"; fi
fi
if [ -z "${CONCLAVE:-}" ]; then
    cargo build -q -p conclave
    CONCLAVE=target/debug/conclave
fi
chronyd=/usr/sbin/chronyd

work=$(mktemp -d)
started=()
cleanup() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap cleanup EXIT

failures=0
check() { # NAME CONDITION...
    local name=$1
    shift
    if "$@"; then echo "ok    $name"; else echo "FAIL  $name"; failures=$((failures + 1)); fi
}
within() { # VALUE EXPECTED TOLERANCE, all in nanoseconds
    [ -n "$1" ] && [ $(($1 - $2)) -le "$3" ] && [ $(($2 - $1)) -le "$3" ]
}
at_most() { [ -n "$1" ] && [ "$1" -le "$2" ]; }
# The wall clock minus the time since boot. It changes only if the clock is set.
wall_minus_boot() { awk -v now="$(date +%s.%N)" '{ printf "%d\n", (now - $1) * 1000 }' /proc/uptime; }

# Runs a command whose clock is SECONDS ahead. It preloads the library instead of using the command `faketime`, because that command
# leaves its child behind when it is killed.
library=$(dpkg -L libfaketime | grep '/libfaketime\.so\.1$')
shifted() { # SECONDS COMMAND...
    local seconds=$1
    shift
    exec env LD_PRELOAD="$library" FAKETIME="$seconds" FAKETIME_DONT_FAKE_MONOTONIC=1 "$@"
}

MS=1000000
SECOND=1000000000
before=$(wall_minus_boot)

# Starts chronyd as a server on a high port, with its clock OFFSET seconds ahead. With an empty SOURCE it does not know the time.
serve_chrony() { # PORT OFFSET SOURCE
    cat >"$work/$1.conf" <<CONF
${3-local stratum 5}
allow 127.0.0.1
bindaddress 127.0.0.1
port $1
cmdport 0
pidfile $work/$1.pid
CONF
    shifted "$2" "$chronyd" -x -d -U -u "$(id -un)" -f "$work/$1.conf" >"$work/$1.log" 2>&1 &
    started+=($!)
}
serve_conclave() { # PORT OFFSET FLAGS...
    local port=$1 offset=$2
    shift 2
    shifted "$offset" "$CONCLAVE" clock --serve "127.0.0.1:$port" "$@" >"$work/$port.log" 2>&1 &
    started+=($!)
}
# Waits until a server answers at the port, at most 10 s.
await() { # PORT
    for _ in $(seq 20); do
        if "$CONCLAVE" clock "127.0.0.1:$1" --samples 1 --timeout 500ms >/dev/null 2>&1; then return; fi
    done
    echo "no server answers at port $1:"
    cat "$work/$1.log"
}
ask() { "$CONCLAVE" clock "$@" --samples 4 --interval 50ms --json; }
# `field` prints a field of the whole answer, `server_field` one of the first server.
field() { sed -n "s/^  \"$1\": \(-\{0,1\}[0-9]*\),\{0,1\}$/\1/p" "$work/answer"; }
server_field() { sed -n "s/^      \"$1\": \(-\{0,1\}[0-9]*\),\{0,1\}$/\1/p" "$work/answer" | head -1; }

echo "# conclave as a client of chronyd"
serve_chrony 11123 +3600
serve_chrony 11125 +0
serve_chrony 11126 +0
serve_chrony 11128 +0 ""
for port in 11123 11125 11126; do await "$port"; done
ask 127.0.0.1:11123 >"$work/answer"
check "an hour ahead: offset $(field offset_ns) ns" within "$(field offset_ns)" $((3600 * SECOND)) $((20 * MS))
check "bound $(field bound_ns) ns" at_most "$(field bound_ns)" $((100 * MS))
check "stratum $(server_field stratum)" [ "$(server_field stratum)" = 5 ]
ask 127.0.0.1:11125 >"$work/answer"
check "the same clock: offset $(field offset_ns) ns" within "$(field offset_ns)" 0 $((20 * MS))
ask 127.0.0.1:11125 127.0.0.1:11126 127.0.0.1:11123 >"$work/answer"
check "two against one: offset $(field offset_ns) ns" within "$(field offset_ns)" 0 $((20 * MS))
check "all of three do not agree" [ "$(ask 127.0.0.1:11125 127.0.0.1:11123 --faulty 0 >/dev/null; echo $?)" = 1 ]
check "one reading suffices" [ "$(ask 127.0.0.1:11125 --wanted 1s >"$work/answer"; echo "$?" "$(server_field sent)")" = "0 1" ]
check "more exact than can be" [ "$(ask 127.0.0.1:11125 --wanted 1ns >"$work/answer"; echo "$?" "$(server_field sent)")" = "1 4" ]
# Before the server listens, nothing answers. Then it answers that it does not know the time.
for _ in $(seq 20); do
    ask 127.0.0.1:11128 >"$work/answer" && break
    if ! grep -q "no server listens at this address" "$work/answer"; then break; fi
done
check "a server without the time: $(sed -n 's/.*"error": //p' "$work/answer")" \
    grep -q '"error": "the server does not know the time"' "$work/answer"
check "nobody there: exit code 1" [ "$("$CONCLAVE" clock 127.0.0.1:9 --samples 1 --timeout 300ms >/dev/null; echo $?)" = 1 ]

echo "# chronyd as a client of conclave"
# Prints the correction that chronyd would make: "System clock wrong by X seconds (ignored)". With -Q it changes nothing.
wrong_by() { # PORT
    "$chronyd" -Q -t 20 -U -u "$(id -un)" -f /dev/null "server 127.0.0.1 port $1 iburst maxsamples 1" "cmdport 0" \
        "pidfile $work/client.pid" >"$work/client.log" 2>&1 || true
    sed -n 's/.*System clock wrong by \(-\{0,1\}\)\([0-9]*\)\.\([0-9]*\) seconds.*/\1\2\3/p' "$work/client.log"
}
serve_conclave 11124 -7 --stratum 3 --dispersion 1ms
serve_conclave 11127 +2 --stratum 3 --dispersion 1ms
for port in 11124 11127; do await "$port"; done
micros=$(wrong_by 11124)
check "seven seconds behind: $micros us" within "${micros:+$((10#${micros#-} * -1000))}" $((-7 * SECOND)) $((20 * MS))
check "in that direction" [ "${micros:0:1}" = - ]
micros=$(wrong_by 11127)
check "two seconds ahead: $micros us" within "${micros:+$((10#$micros * 1000))}" $((2 * SECOND)) $((20 * MS))
ask 127.0.0.1:11124 >"$work/answer"
check "conclave of conclave: offset $(field offset_ns) ns" within "$(field offset_ns)" $((-7 * SECOND)) $((20 * MS))
check "its dispersion is passed on: bound $(field bound_ns) ns" [ "$(field bound_ns)" -ge $MS ]

after=$(wall_minus_boot)
check "nobody touched the system clock" within $((after * MS)) $((before * MS)) $((200 * MS))
if [ "$failures" != 0 ]; then
    echo "$failures failed; chronyd said:"
    cat "$work"/*.log
    exit 1
fi
