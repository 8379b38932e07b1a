#!/usr/bin/env bash
# Measures Redis, ZooKeeper and etcd beside `conclave bench`. All are durable and take turns in one run, so their figures can be compared.
#
#   scripts/bench-others.sh [--rounds N] [--seconds S] [--warmup S] [--systems LIST] [--folder FOLDER] [--json] [CONCLAVE]
#
#   --rounds N        rounds of measurements, after the warm-up                                  [default: 5]
#   --seconds S       length of each measurement                                                 [default: 3]
#   --warmup S        length of the warm-up of each system, with the same load                   [default: 10]
#   --systems LIST    the systems, separated by commas     [default: redis,zookeeper,etcd,conclave]
#   --folder FOLDER   a folder on a disk for temporary data          [default: $TMPDIR or /var/tmp]
#   --json            print JSON instead of the table
#   CONCLAVE          the binary                           [default: target/release/conclave]
#
# The script needs the Debian packages redis-server, zookeeper and etcd-server, and installs nothing. The servers listen on free ports
# of the loopback address. At the end, also after Ctrl-C, the script stops them and deletes their data. With the defaults it takes about
# seven minutes. The machine should do nothing else.
#
# Redis runs with appendfsync always; ZooKeeper (forceSync), etcd and conclave sync by default. The load on the other systems comes from
# benches/others, which this script builds first. The load goes over TCP, except in rows that say "Unix socket". The heads of the
# files in benches/others say which requests make a pair of acquire and release.
set -euo pipefail

usage() { sed -n '4,12s/^# \{0,3\}//p' "$0" >&2; exit 2; }

rounds=5 seconds=3 warmup=10 systems=redis,zookeeper,etcd,conclave disk=${TMPDIR:-/var/tmp} format=() conclave=
while [ $# -gt 0 ]; do
    case $1 in
        --json) format=(--json); shift; continue ;;
        --rounds | --seconds | --warmup | --systems | --folder) [ $# -ge 2 ] || usage ;;&
        --rounds) rounds=$2 ;;
        --seconds) seconds=$2 ;;
        --warmup) warmup=$2 ;;
        --systems) systems=$2 ;;
        --folder) disk=$2 ;;
        -*) usage ;;
        *) [ -z "$conclave" ] || usage; conclave=$1; shift; continue ;;
    esac
    shift 2
done
repository=$(cd "$(dirname "$0")/.." && pwd)
conclave=${conclave:-$repository/target/release/conclave}
zookeeper_jar=/usr/share/java/zookeeper.jar

wanted() { [[ ,$systems, == *,$1,* ]]; }
fail() { echo "$1" >&2; exit 1; }

# List all missing programs in one message.
missing=()
wanted redis && ! command -v redis-server >/dev/null && missing+=(redis-server)
wanted zookeeper && ! { [ -e $zookeeper_jar ] && command -v java >/dev/null; } && missing+=(zookeeper)
wanted etcd && ! command -v etcd >/dev/null && missing+=(etcd-server)
[ ${#missing[@]} -eq 0 ] || fail "needs: apt-get install --no-install-recommends ${missing[*]}   (or leave some out: --systems LIST)"
wanted conclave && ! [ -x "$conclave" ] && fail "needs $conclave: cargo build --release -p conclave"
case $(stat -f -c %T "$disk") in
    tmpfs | ramfs) fail "$disk is in memory, where nothing is durable: name another --folder" ;;
esac

cargo build --release --locked --quiet --manifest-path "$repository/benches/others/Cargo.toml"
others=$repository/benches/others/target/release/conclave-bench-others

folder=$(mktemp -d "$disk/bench-others.XXXXXX")
servers=()
# Kills the servers that this script started, by their process ids. A clean end is not needed: their data is deleted too.
stop() {
    # The redirection hides the shell's line about each killed process.
    { [ ${#servers[@]} -eq 0 ] || kill -KILL "${servers[@]}" || true; wait; } 2>/dev/null
    servers=()
}
trap 'stop; rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM HUP

# Starts a server: start LOG COMMAND...
start() {
    local log=$folder/$1.log
    shift
    "$@" >"$log" 2>&1 &
    servers+=($!)
}

start_redis() {
    mkdir "$folder/redis"
    start redis redis-server --bind 127.0.0.1 --port "$1" --dir "$folder/redis" --appendonly yes --appendfsync always --save "" \
        --unixsocket "$folder/redis.socket" --unixsocketperm 700
}

# start_zookeeper NAME PORT...: three ports per node, for clients, followers and elections.
start_zookeeper() {
    local name=$1 nodes=$(($# / 3)) node members=
    shift
    local ports=("$@")
    if [ "$nodes" -gt 1 ]; then
        for ((node = 0; node < nodes; node++)); do
            members+="server.$node=127.0.0.1:${ports[node * 3 + 1]}:${ports[node * 3 + 2]}"$'\n'
        done
    fi
    for ((node = 0; node < nodes; node++)); do
        local home=$folder/$name.$node
        mkdir -p "$home/data"
        echo "$node" >"$home/data/myid"
        cat >"$home/zoo.cfg" <<CONFIGURATION
tickTime=2000
initLimit=10
syncLimit=5
dataDir=$home/data
clientPortAddress=127.0.0.1
clientPort=${ports[node * 3]}
maxClientCnxns=0
admin.enableServer=false
$members
CONFIGURATION
        # The heap is that of ZooKeeper's own start script.
        start "$name.$node" java -Xmx1000m -cp $zookeeper_jar org.apache.zookeeper.server.quorum.QuorumPeerMain "$home/zoo.cfg"
    done
}

# start_etcd NAME PORT...: two ports per node, for clients and peers.
start_etcd() {
    local name=$1 nodes=$(($# / 2)) node members=
    shift
    local ports=("$@")
    for ((node = 0; node < nodes; node++)); do
        members+=,$node=http://127.0.0.1:${ports[node * 2 + 1]}
    done
    for ((node = 0; node < nodes; node++)); do
        local client=http://127.0.0.1:${ports[node * 2]} peer=http://127.0.0.1:${ports[node * 2 + 1]}
        start "$name.$node" etcd --name "$node" --data-dir "$folder/$name.$node" --logger zap --log-level error \
            --listen-client-urls "$client" --advertise-client-urls "$client" \
            --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "${members#,}"
    done
}

# start_conclave NAME PORT...
start_conclave() {
    local name=$1 first=$2 node=0 port
    shift
    for port in "$@"; do
        local join=()
        [ $node -eq 0 ] || join=(--join "127.0.0.1:$first")
        start "$name.$node" "$conclave" serve --data "$folder/$name.$node" --listen "127.0.0.1:$port" "${join[@]}"
        # Wait until this node votes, before the next one joins.
        node=$((node + 1))
        conclave_leader "127.0.0.1:$port" $node >/dev/null
    done
}

# conclave_leader ADDRESS VOTERS: waits until that many nodes vote and answer, then prints the address of the leader.
conclave_leader() {
    local tries=0 status
    until status=$("$conclave" cluster status --server "$1" 2>/dev/null) && [[ $status == *"$2 of $2 voters answer"* ]]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || fail "conclave did not become ready: $(cat "$folder"/conclave*.log)"
        sleep 0.1
    done
    awk '$2 == "leader" {print $NF}' <<<"$status"
}

# ready SYSTEM ADDRESSES: waits until the system answers, then prints the leader's address.
ready() { "$others" leader "$1" "$2" || fail "$1 did not become ready: $(tail -n 5 "$folder/$1"*.log)"; }

# addresses STEP PORT...: the addresses of every STEPth port, separated by commas.
addresses() {
    local step=$1 list='' index
    shift
    local ports=("$@")
    for ((index = 0; index < $#; index += step)); do list+=,127.0.0.1:${ports[index]}; done
    echo "${list#,}"
}

# bench SYSTEM ADDRESSES SECONDS LOAD...: prints the figures as JSON.
bench() {
    local system=$1 addresses=$2 time=$3
    shift 3
    case $system in
        floor) "$others" floor "$folder" --seconds "$time" ;;
        conclave) "$conclave" bench --server "$addresses" --seconds "$time" --json "$@" ;;
        *) "$others" bench "$system" "$addresses" --seconds "$time" "$@" ;;
    esac
}

# version SYSTEM: prints its version.
version() {
    case $1 in
        redis) redis-server --version | sed 's/.* v=\([^ ]*\).*/\1/' ;;
        zookeeper) printf '%s\n' "${zookeeper_jar%.jar}"-[0-9]*.jar | sed 's/.*-\(.*\)\.jar/\1/' ;;
        etcd) etcd --version | awk '/^etcd Version/ {print $3}' ;;
        conclave) "$conclave" --version | awk '{print $2}' ;;
    esac
}

# Prints the table of all measurements.
report() {
    local system versions='' about
    for system in redis zookeeper etcd conclave; do
        if wanted $system; then versions+="$system $(version $system), "; fi
    done
    about="$versions$(nproc) cores, $rounds rounds of $seconds s in turns: medians; fairness is that of the worst round"
    "$others" table --about "$about" "${format[@]}" <"$folder/records"
}

# measure ROW SYSTEM ADDRESSES LOAD...: measures once and adds a record.
measure() {
    local row=$1 system=$2 addresses=$3 figures
    shift 3
    if ! figures=$(bench "$system" "$addresses" "$seconds" "$@"); then
        # Print the measurements made so far before the script fails.
        report
        fail "$system failed: $row"
    fi
    printf '{"row": "%s", "system": "%s"}\n%s\n' "$row" "$system" "$figures" >>"$folder/records"
}

# measure_local ROW LOAD...: measures the systems with a Unix socket. A conclave client finds the socket by itself.
measure_local() {
    local row="$1, Unix socket"
    shift
    if wanted redis; then measure "$row" redis "$folder/redis.socket" "$@"; fi
    if wanted conclave; then measure "$row" conclave "${at[conclave]#tcp:}" "$@"; fi
}

say() { echo "$*" >&2; }

# warm_up NODES LOAD...: warms up every system in turn.
warm_up() {
    local nodes=$1 system
    shift
    for system in $order; do
        say "$nodes: warming up $system"
        bench "$system" "${at[$system]}" "$warmup" "$@" >/dev/null || fail "$system failed while it was warmed up"
    done
}

# The chosen systems, in the order of their turns.
order=
for system in redis zookeeper etcd conclave; do
    if wanted $system; then order+="$system "; fi
done
[ -n "$order" ] || usage
# The address of each system.
declare -A at=()

one_node() {
    local ports round system
    mapfile -t ports < <("$others" ports 7)
    if wanted redis; then
        start_redis "${ports[0]}"
        at[redis]=$(ready redis "127.0.0.1:${ports[0]}")
    fi
    if wanted zookeeper; then
        start_zookeeper zookeeper1 "${ports[@]:1:3}"
        at[zookeeper]=$(ready zookeeper "127.0.0.1:${ports[1]}")
    fi
    if wanted etcd; then
        start_etcd etcd1 "${ports[@]:4:2}"
        at[etcd]=$(ready etcd "127.0.0.1:${ports[4]}")
    fi
    if wanted conclave; then
        start_conclave conclave1 "${ports[6]}"
        at[conclave]=tcp:127.0.0.1:${ports[6]}
    fi
    warm_up "1 node" --clients 64
    warm_up "1 node, one name" --clients 16 --workload contended
    for ((round = 1; round <= rounds; round++)); do
        say "1 node: round $round of $rounds"
        for system in $order; do measure "64 clients, own names, 1 node" "$system" "${at[$system]}" --clients 64; done
        if wanted zookeeper; then
            measure "64 clients, bare nodes, 1 node" zookeeper "${at[zookeeper]}" --clients 64 --workload bare
        fi
        measure_local "64 clients, own names, 1 node" --clients 64
        for system in $order; do
            measure "16 clients, one name, 1 node" "$system" "${at[$system]}" --clients 16 --workload contended
        done
        measure_local "16 clients, one name, 1 node" --clients 16 --workload contended
        measure "1 client, 1 node" floor ""
        for system in $order; do measure "1 client, 1 node" "$system" "${at[$system]}" --clients 1; done
        if wanted conclave; then
            measure "1 connection, 64 in flight, 1 node" conclave "${at[conclave]}" --clients 1 --connections 1 --in-flight 64
        fi
    done
}

three_nodes() {
    local ports round system
    declare -A all=()
    mapfile -t ports < <("$others" ports 18)
    if wanted zookeeper; then
        start_zookeeper zookeeper3 "${ports[@]:0:9}"
        all[zookeeper]=$(addresses 3 "${ports[@]:0:9}")
    fi
    if wanted etcd; then
        start_etcd etcd3 "${ports[@]:9:6}"
        all[etcd]=$(addresses 2 "${ports[@]:9:6}")
    fi
    if wanted conclave; then
        start_conclave conclave3 "${ports[@]:15:3}"
        at[conclave]=tcp:$(conclave_leader "127.0.0.1:${ports[15]}" 3)
    fi
    for system in $order; do
        if [ "$system" != conclave ]; then at[$system]=$(ready "$system" "${all[$system]}"); fi
    done
    warm_up "3 nodes" --clients 64
    for ((round = 1; round <= rounds; round++)); do
        say "3 nodes: round $round of $rounds"
        for system in $order; do
            # The leader may have changed since the last round.
            if [ "$system" = conclave ]; then
                at[conclave]=tcp:$(conclave_leader "127.0.0.1:${ports[15]}" 3)
            else
                at[$system]=$(ready "$system" "${all[$system]}")
            fi
            measure "64 clients, 3 nodes, at the leader" "$system" "${at[$system]}" --clients 64
        done
        if wanted zookeeper; then
            measure "64 clients, bare nodes, 3 nodes" zookeeper "${at[zookeeper]}" --clients 64 --workload bare
        fi
        # A conclave client connects to the first address that answers, so one process cannot spread its clients.
        for system in $order; do
            if [ "$system" != conclave ]; then
                measure "64 clients, 3 nodes, spread" "$system" "${all[$system]}" --clients 64
            fi
        done
    done
}

one_node
stop
order=${order/redis /}
[ -z "$order" ] || three_nodes
stop

report
