#!/usr/bin/env bash
# Fuzzes one of fuzz/fuzz_targets with coverage as the guide, on the stable compiler and without cargo-fuzz.
#
#   scripts/fuzz.sh TARGET [SECONDS] [FLAG...]      TARGET: expr, native_frame, peer_frame, log_recovery, snapshot or all
#
# SECONDS is 60 by default, for each target. Further flags go to libFuzzer (-help=1 lists them). What it finds worth keeping goes to
# fuzz/corpus/TARGET, an input that crashes or takes longer than 30 seconds to fuzz/artifacts/TARGET; neither is under version control.
# `cargo +nightly fuzz run TARGET` does the same with the address sanitizer.
set -euo pipefail

usage() { sed -n '4p' "$0" | sed 's/^# *//' >&2; exit 2; }

target=${1:-}
seconds=${2:-60}
[[ $seconds =~ ^[0-9]+$ ]] || usage
shift $(($# > 2 ? 2 : $#))
cd "$(dirname "$0")/../fuzz"
targets=(fuzz_targets/*.rs)
targets=("${targets[@]#fuzz_targets/}")
targets=("${targets[@]%.rs}")
case " ${targets[*]} all " in
    *" $target "*) [ "$target" = all ] || targets=("$target") ;;
    *) usage ;;
esac

host=$(rustc -vV | sed -n 's/^host: //p')
# What cargo-fuzz passes, but for the sanitizer. Given a target, build scripts and macros are compiled without.
coverage="--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 -Cllvm-args=-sanitizer-coverage-level=4"
coverage+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
for target in "${targets[@]}"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    RUSTFLAGS=$coverage cargo run --release --locked --target "$host" --bin "$target" -- \
        "corpus/$target" -artifact_prefix="artifacts/$target/" -max_total_time="$seconds" -timeout=30 -print_final_stats=1 "$@"
done
