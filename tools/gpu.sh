#!/usr/bin/env bash
# Measure on a borrowed GPU: experiments in order of what they decide, then one archive of records and checkpoints.
# usage: tools/gpu.sh FOLDER [SECONDS]    (540 seconds unless set; PYTHON names another interpreter)
# Cells on record are skipped and a training goes on at its checkpoint, so the same command goes on where it stopped.
# On the next machine: tar -xzf FOLDER.tar.gz
set -uf
[ $# -ge 1 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
results=$1 end=$((SECONDS + ${2:-540})) python=${PYTHON:-.venv/bin/python} failed=0
mkdir -p "$results" || exit 1
trap 'tar -czf "$results.tar.gz" "$results"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

while read -r words; do
  left=$((end - SECONDS))
  [ "$left" -gt 0 ] || break
  echo "$left s left: $words" >&2
  timeout --foreground --kill-after=30 "$left" \
    "$python" -m bench $words device=cuda reuse=config "results=$results" </dev/null
  case $? in
    0) ;;
    124 | 137) break ;; # out of time
    130 | 143) exit 130 ;;
    *) failed=1 ;;
  esac
done <<'END'
experiment=correctness
experiment=prediction
experiment=fig1
experiment=fig1 methods=[comera,dense,galore] precision=bf16
experiment=fig1_all timing.blocks=2 timing.extra_blocks=1 timing.warmup_steps=1
experiment=fig7
experiment=widths_decoder
experiment=fig5
experiment=ratios
experiment=formats_base name=formats_base_time measure=run +formats=muon
experiment=formats_base +formats=muon methods=[dense,dense:narrow] training.lr=0.03
experiment=formats_base +formats=muon methods=[{btt:{rank:2}}] training.lr=0.015
experiment=formats_base +formats=muon methods=[comera:orthogonal] settings.comera.gamma=0.0 settings.comera.beta=0.0 training.lr=0.06
experiment=pointer_full
experiment=accuracy dataset=sst2
experiment=accuracy dataset=nli_pool
experiment=table_fp8
experiment=table_fp8 batch_size=4096,16384 linear={in_features:768,out_features:768},{in_features:768,out_features:3072},{in_features:3072,out_features:768}
experiment=fig14
experiment=fig8
experiment=fig9
experiment=fig9_independent
experiment=fig10_time
experiment=fig10_time code.sequence_length=512 batch_size=8
experiment=contraction
END
exit $failed
