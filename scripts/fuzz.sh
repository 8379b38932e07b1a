#!/usr/bin/env bash
# Runs a coverage-guided fuzz target of fuzz/fuzz_targets. It needs only the stable compiler, and no cargo-fuzz.
#
#   scripts/fuzz.sh TARGET [SECONDS] [FLAG...]      TARGET: expr, native_frame, peer_frame, log_recovery, snapshot or all
#
# Each target runs for SECONDS (60 by default). Further flags go to libFuzzer; -help=1 lists them. New inputs go to fuzz/corpus/TARGET.
# Inputs that crash, or take longer than 30 seconds, go to fuzz/artifacts/TARGET. Neither folder is under version control.
# `cargo +nightly fuzz run TARGET` does the same with the address sanitizer.
set -euo pipefail

cd "$(dirname "$0")/../fuzz"
usage() { sed -n '4p' ../scripts/fuzz.sh | sed 's/^# *//' >&2; exit 2; }

target=${1:-}
seconds=${2:-60}
[[ $seconds =~ ^[0-9]+$ ]] || usage
shift $(($# > 2 ? 2 : $#))
targets=(fuzz_targets/*.rs)
targets=("${targets[@]#fuzz_targets/}")
targets=("${targets[@]%.rs}")
case " ${targets[*]} all " in
    *" $target "*) [ "$target" = all ] || targets=("$target") ;;
    *) usage ;;
esac

host=$(rustc -vV | sed -n 's/^host: //p')
# The flags of cargo-fuzz, without the sanitizer. With --target, cargo does not apply them to build scripts and macros.
coverage="--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 -Cllvm-args=-sanitizer-coverage-level=4"
coverage+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
for target in "${targets[@]}"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    RUSTFLAGS=$coverage cargo run --release --locked --target "$host" --bin "$target" -- \
        "corpus/$target" -artifact_prefix="artifacts/$target/" -max_total_time="$seconds" -timeout=30 -print_final_stats=1 "$@"
done
