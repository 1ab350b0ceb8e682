#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# Help of each command and model, refused options, man pages and completion: all from the tables.
. "$SOURCE/tests/e2e/lib.sh"
help() { expect 0 "$TESSERA" "$@" --help; }
shows() { grep -Eq -- "$1" out || fail "no '$1' in the help: $(cat out)"; }
lacks() { ! grep -Eq -- "$1" out || fail "'$1' is in the help: $(cat out)"; }

# A model's page: groups in order, what it takes with its defaults, and nothing of the other models.
help train gpt
groups=$(grep -E '^[A-Z][a-z ]*:$' out | tr -d '\n')
[ "$groups" = "Model:Data:Optimizer:Memory:Ranks and devices:Output:Examples:" ] || fail "groups are $groups"
shows '^      --layers N +number of layers \[4\]$'
shows '^      --lr RATE .*\[0\.002\]$'
shows '^      --steps S .*\[2000\]$'
shows '^  -n, --ranks N '
shows '--sync each\|end '
lacks 'image-size|--epochs|--machine'
help train mnist
shows '--epochs E .*\[5\]$'
lacks '--layers|--steps.*\['
awk 'length > 130 { exit 1 }' out || fail "a long line" # bytes; 100 columns
for word in -h '-?'; do
  expect 0 "$TESSERA" train gpt "$word"
  shows '--layers N +number of layers \[4\]$'
done
expect 0 "$TESSERA" train --help gpt --steps 3 # wherever it stands
shows '--layers N +number of layers \[4\]$'

# Each model's own defaults are those of docs/train.md; those of Hugging Face folders have the same.
models="mnist gpt families convbn linear"
for model in mnist gpt gpt2 llama qwen2 qwen3 mistral gemma2 gemma3 convbn linear; do "$TESSERA" train $model --help >"$model.help"; done
defaults_of() { sed -nE 's/^ *--([a-z0-9-]+) .*\[([^]]*)\]$/\1 \2/p' "$1.help"; }
for model in llama qwen2 qwen3 mistral gemma2 gemma3; do
  diff <(defaults_of gpt2) <(defaults_of $model) || fail "$model has other defaults than gpt2"
done
mv gpt2.help families.help
{
  echo "| default |$(printf ' %s |' $models)"
  echo "| --- |$(printf ' --- |%.0s' $models)"
  for option in batch steps epochs optimizer lr momentum beta2 weight-decay clip layers heads width context image-size hidden sample; do
    printf '| `--%s` |' $option
    for model in $models; do
      sed -n "s/^ *--$option .*\\[\\([^]]*\\)\\]\$/\\1/p" $model.help | tr -d '\n' | sed 's/^./ &/'
      printf ' |'
    done
    echo
  done
} >defaults
rm ./*.help # which completion would offer
[ "$(sed -n '/^| default |/,/^$/p' "$SOURCE/docs/train.md" | sed '/^$/d')" = "$(cat defaults)" ] || fail "docs/train.md has other defaults than help: $(cat defaults)"
# A screen: one line per option; the examples are the model's own; without a model, names alone.
for model in mnist gpt gpt2 llama qwen2 qwen3 mistral gemma2 gemma3 convbn linear; do
  help train $model
  [ "$(wc -l <out)" -le 104 ] || fail "train $model --help has $(wc -l <out) lines"
  ! grep -Eq '^ {30}' out || fail "an option of $model takes two lines: $(grep -E -B1 '^ {30}' out)"
  shows "^  tessera train $model "
  ! sed -n '/^Examples:$/,$p' out | grep -E '^  tessera' | grep -vq "train $model " || fail "examples of others for $model"
done
for command in train plan tune; do
  help $command
  [ "$(wc -l <out)" -le 66 ] || fail "$command --help has $(wc -l <out) lines"
  for option in model layers data epochs lr wrap ranks json; do shows "^  .* --$option( |$)|^ +--$option( |$)"; done
done

# Each command has help by each word, which begins with its usage; those of the table have an example.
expect 0 "$TESSERA" -h
cp out all
for command in $("$TESSERA" --help=names); do
  grep -Eq "^  $command +[a-z]" all || fail "--help does not list $command"
  for word in --help -h; do
    expect 0 "$TESSERA" "$command" $word
    head -n 1 out | grep -q "^Usage: tessera $command" || fail "$command $word: $(head -n 1 out)"
    lacks '\(null\)'
  done
done
for command in train plan tune bench run report ckpt; do
  help $command
  sed -n '/^Examples:$/,$p' out | grep -q "^  tessera $command " || fail "$command has no example"
done

# A word of ckpt has its own usage and options.
help ckpt export
one_line <(head -n 1 out) "Usage: tessera ckpt export PATH FOLDER [OPTION…]"
shows '^      --dtype fp32'
lacks '--to W|--keep K'
help ckpt
for word in list show verify diff reshard export import prune; do shows "^       tessera ckpt $word |^Usage: tessera ckpt $word "; done

# Not taken: exit code 2 and one line that says so.
refuse() { local line=$1; shift; expect 2 "$TESSERA" "$@"; one_line err "$line"; }
refuse "tessera train: mnist takes no --layers, only gpt gpt2 llama qwen2 qwen3 mistral gemma2 gemma3" train mnist --layers 3
refuse "tessera train: gpt takes no --epochs, only mnist" train --epochs=2 gpt
refuse "tessera train: linear takes no --data, only mnist gpt gpt2 llama qwen2 qwen3 mistral gemma2 gemma3" train linear --data x
refuse "tessera train: takes no --machine; \`tessera train --help\` lists its options" train gpt --machine x
refuse "tessera plan: FILE takes no --hidden, only convbn" plan ./a.json --hidden 4
refuse "tessera bench: takes no --lr; \`tessera bench --help\` lists its options" bench --lr 3
refuse "tessera ckpt: list takes no --to, only reshard import" ckpt list run --to 3
refuse "tessera ckpt: takes --keep only with prune" ckpt --keep 3
refuse "tessera bench: cast takes no --op, only comm" bench cast --op all_gather
refuse "tessera bench: takes --op only with comm" bench --op all_gather
refuse "tessera run: unknown option '--lr'" run --lr 3 -- true
refuse "tessera report: unknown option '--batch'" report --batch 3
# Every option that a command has: each of its words lists it, or refuses it in one line that names it. So do others' options.
tried=0
refuses_the_rest() { # WORD…: a command, and perhaps its subject
  local option
  "$TESSERA" "$@" --help >listed || fail "no help of $*"
  for option in $({ "$TESSERA" "$1" --help; echo --epochs --op --to --nnodes; } | grep -oE -- '--[a-z][a-z-]*' | sort -u); do
    ! grep -Eq -- "(^|[ ,])$option([] =[,]|$)" listed && [ "$option" != --help ] && [ "$option" != --some-option ] || continue
    expect 2 "$TESSERA" "$@" "$option" 1
    [ "$(wc -l <err)" = 1 ] && grep -q -- "$option" err || fail "$* $option 1: $(cat err)"
    tried=$((tried + 1))
  done
}
for model in mnist gpt gpt2 llama qwen2 qwen3 mistral gemma2 gemma3 convbn linear; do refuses_the_rest train $model; done
for words in "plan mnist" "plan llama" "tune convbn" "bench cast" "bench comm" "bench blocks" "bench step" run report "ckpt list" "ckpt export" \
  "ckpt import" "plugins check"; do
  # shellcheck disable=SC2086
  refuses_the_rest $words
done
[ $tried -gt 120 ] || fail "only $tried options tried"
# What belongs to another model may stand in the environment, which all programs share.
TESSERA_LAYERS=3 expect 0 "$TESSERA" plan linear

# Pages and completion.
pages=$BUILD/pages
if [ ! -e "$pages/made" ]; then
  echo "help is right; pages are not made in this build"
  exit 0
fi
for command in $("$TESSERA" --help=names); do
  [ -s "$pages/man1/tessera-$command.1" ] || fail "no page of $command"
  grep -q "tessera-$command (1)\|tessera\\\\-$command (1)" "$pages/man1/tessera.1" || fail "tessera(1) does not name $command"
done
grep -q 'weight\\-decay' "$pages/man1/tessera-train.1" || fail "tessera-train(1) lacks --weight-decay"
for page in tessera.h tessera-inspect.h tessera-gpu.h; do
  declared=$(grep -c '^TESS_API' "$SOURCE/core/include/tessera/${page#tessera-}")
  found=$(sed -n '/^\.B .*tess_[a-z_]*(/p' "$pages/man3/$page.3" | wc -l)
  [ "$found" = "$declared" ] || fail "$page(3) has $found functions, the header $declared"
done
if command -v man >/dev/null; then
  for page in "$pages"/man*/*; do
    said=$(LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=100 man --warnings -l "$page" 2>&1 >/dev/null)
    [ -z "$said" ] || fail "$page: $said"
  done
fi
complete_words() { # WORD…: what bash offers for the last one
  bash --norc -c 'complete() { :; }; . "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tessera; printf "%s " "${COMPREPLY[@]}"' \
    bash "$pages/bash/tessera" "$@"
}
offers() { local want=$1 got; shift; got=$(complete_words "$@"); [ "$got" = "$want " ] || fail "completion of '$*' is '$got'"; }
offers "train" tessera tr
offers "mnist" tessera train mn
offers "--weight-decay" tessera train gpt --wei
offers "recompute" tessera train gpt --activations r
offers "end" tessera plan gpt --sync = en
offers "reshard" tessera ckpt res
offers "bf16" tessera ckpt export run folder --dtype b
offers "--max-file" tessera ckpt export --ma
offers "check" tessera plugins ch
offers "--only" tessera plugins check --on
if command -v zsh >/dev/null; then
  zsh -n "$pages/zsh/_tessera" || fail "zsh does not take its completion"
  got=$(zsh -fc 'compdef() { :; }; compadd() { print -- "$@"; }; . $1; words=(tessera train gpt --activations ""); CURRENT=5; _tessera' \
    zsh "$pages/zsh/_tessera")
  [ "$got" = "-- keep recompute offload selective" ] || fail "zsh offers '$got'"
  got=$(zsh -fc 'compdef() { :; }; compadd() { print -- "$@"; }; _files() { :; }; . $1; words=(tessera ckpt ""); CURRENT=3; _tessera' \
    zsh "$pages/zsh/_tessera")
  [ "$got" = "-- list show verify diff reshard export import prune" ] || fail "zsh offers '$got' of ckpt"
fi
echo "help, man pages and completion say what the tables say"
