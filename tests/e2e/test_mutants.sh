#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The mutants of tests/mutations/mutants.py are the faults that their names say, each alone; without one the program does what
# it did. Those that a run reaches are noted, also by a child process.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
for tool in clang-14 python3; do
  command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }
done
cat >sample.c <<'END'
#include <stdio.h>
#include <unistd.h>
#include <sys/wait.h>
#define TRY(call)      \
    do {               \
        int s = call;  \
        if (s)         \
            return s;  \
    } while (0)
enum { THREE = 3 };
static const int table[2 * THREE] = { 1, 2, 3 };
static int refuse(int n) { return n > THREE ? 1 : 0; }
static int sum(int n, int *out) {
    int total = 0;
    TRY(refuse(n));
    for (int i = 0; i < n; i++)
        if (i != 1 || table[i] << 1 == 0)
            total += table[i] * 2;
    if (!total)
        return 5;
    *out = total;
    return 0;
}
static void greet(void) { fputs("hi ", stdout); }
int main(int argc, char **argv) {
    int at[3] = { 7, 7, 7 };
    if (argc > 1) { /* a child does it all */
        if (fork() == 0)
            execl(argv[0], argv[0], (char *)NULL);
        return wait(NULL) < 0;
    }
    greet();
    for (int n = 0; n < 5; n += 2)
        printf("%d:", sum(n, at)), printf("%d ", *at);
    return 0;
}
END
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$SOURCE/tests/mutations python3 - >keys <<'END'
import mutants, os, pathlib
tree = mutants.syntax_tree(['cc', '-o', 'x.o', '-c', 'sample.c'], '.')
text, found = mutants.mutate('sample.c', pathlib.Path('sample.c'), tree, {'main'})
pathlib.Path('mutated.c').write_text(f'#define MUTANT_FILE "sample.c"\n#define MUTANT_ID sample\n#include "mutant.h"\n{text}\n#include "mutant.h"\n'
  # as in a test that includes two sources
  '#define MUTANT_FILE "other.c"\n#define MUTANT_ID other\n#include "mutant.h"\nint other(void) { return MUTANT(1) ? 2 : 1; }\n#include "mutant.h"\n')
print('\n'.join(m['key'] for m in found))
END
cc -w -O1 -I"$SOURCE/tests/mutations" -o sample mutated.c
[ "$(./sample)" = 'hi 5:7 0:2 1:2 ' ] || fail "without a mutant: $(./sample)"
number=0
while IFS= read -r key; do
  number=$((number + 1))
  echo "${key#sample.c } | $(MUTANT=sample.c:$number timeout 10 ./sample) |"
done <keys >table
diff - table <<'END' || fail "the mutants"
refuse: return 0 at once | hi 5:7 0:2 0:8  |
refuse: n > THREE => > -> >= | hi 5:7 0:2 1:2  |
refuse: n > THREE => > -> <= | hi 1:7 1:7 0:8  |
refuse: n > THREE => > one off | hi 5:7 0:2 0:8  |
refuse: 1 => 1 -> 0 | hi 5:7 0:2 0:8  |
refuse: 0 => 0 -> 1 | hi 1:7 1:7 1:7  |
sum: return 0 at once | hi 0:7 0:7 0:7  |
sum: 0 => 0 -> 1 | hi 0:1 0:3 1:3  |
sum: TRY(refuse(n)) => deleted | hi 5:7 0:2 0:8  |
sum: 0 => 0 -> 1 (2) | hi 5:7 5:7 1:7  |
sum: i < n => < -> <= | hi 0:2 0:8 1:8  |
sum: i < n => < -> >= |  |
sum: i < n => < one off | hi 5:7 0:2 1:2  |
sum: i != 1 || table[i] << 1 == 0 => negated | hi 5:7 0:4 1:4  |
sum: i != 1 || table[i] << 1 == 0 => || -> && | hi 5:7 5:7 1:7  |
sum: i != 1 => != -> == | hi 5:7 0:4 1:4  |
sum: 1 => 1 -> 0 | hi 5:7 0:4 1:4  |
sum: table[i] << 1 == 0 => == -> != | hi 5:7 0:6 1:6  |
sum: table[i] << 1 => << -> >> | hi 5:7 0:2 1:2  |
sum: 1 => 1 -> 0 (2) | hi 5:7 0:2 1:2  |
sum: 0 => 0 -> 1 (3) | hi 5:7 0:2 1:2  |
sum: table[i] * 2 => * -> / | hi 5:7 5:7 1:7  |
sum: 2 => 2 -> 2 + 1 | hi 5:7 0:3 1:3  |
sum: total += table[i] * 2 => deleted | hi 5:7 5:7 1:7  |
sum: total += table[i] * 2 => += -> -= | hi 5:7 0:-2 1:-2  |
sum: !total => ! deleted | hi 0:0 5:0 1:0  |
sum: 5 => 5 -> 5 + 1 | hi 6:7 0:2 1:2  |
sum: return 5 => deleted | hi 0:0 0:2 1:2  |
sum: *out = total => deleted | hi 5:7 0:7 1:7  |
sum: 0 => 0 -> 1 (4) | hi 5:7 1:2 1:2  |
greet: return at once | 5:7 0:2 1:2  |
greet: fputs("hi ", stdout) => deleted | 5:7 0:2 1:2  |
END
[ "$(MUTANT=ample.c:1 ./sample)$(MUTANT=sample.cc:1 ./sample)" = 'hi 5:7 0:2 1:2 hi 5:7 0:2 1:2 ' ] || fail "others' mutants"
printf '0 %d other.c\n10 %d sample.c\n' $((10 + number)) $((10 + number)) >firsts
head -c $((10 + number)) /dev/zero >seen
MUTANTS_REACHED=$PWD/seen MUTANTS_FIRSTS=$PWD/firsts ./sample child >/dev/null
want=$(printf '00%.0s' {1..10})$(printf '01%.0s' {11..42})
[ "$(od -An -v -tx1 seen | tr -d ' \n')" = "$want" ] || fail "noted: $(od -An -v -tx1 seen)"

# The floor of a run: fewer are noticed in at most one of 1,000 draws at that score. Long names, and keys of no mutant.
python3 - "$SOURCE/tests/mutations" <<'END' || fail "the floor"
import importlib.machinery, importlib.util, pathlib, random, sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
loader = importlib.machinery.SourceFileLoader('score', sys.argv[1] + '/score')
score = importlib.util.module_from_spec(importlib.util.spec_from_loader('score', loader))
loader.exec_module(score)
# What a test reaches is kept under its name, and a cell of the matrix may have a longer one than a file.
score.WORK = pathlib.Path('work')
names = ['unit/base/test_pool', *('cell/' + 'comm=shm,' * 40 + w for w in ('W=2', 'W=3'))]
paths = [score.seen_by(n) for n in names]
assert len({*paths}) == 3 and paths[0].name == 'unit+base+test_pool', paths
for path in paths:
    path.parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(f'{path} took').write_text('1')
chance = random.Random(7)
for decided, rate in ((5, 0.75), (17, 0.75), (40, 0.75), (40, 0.9)):
    least = score.least_of(decided, rate)
    draws = [sum(chance.random() < rate for _ in range(decided)) for _ in range(20000)]
    below, within = sum(d < least for d in draws), sum(d <= least for d in draws)
    assert below <= 40 and within > 8, (decided, rate, least, below, within)
assert score.least_of(0, 0.75) == 0 and score.least_of(40, 0.75) == 21
for noticed, code in ((20, score.BELOW), (21, 0)):
    try:
        score.hold_floor(0.75, {'noticed': noticed, 'survived': 30 - noticed, 'not reached': 10, 'no time': 5, 'equivalent': 5})
    except SystemExit as ended:
        assert ended.code == code, (noticed, ended.code)
# Of sources that are mutated, and of those that are no more.
score.SOURCE = pathlib.Path('.')
every = [{'file': 'sample.c', 'key': 'sample.c refuse: 1 => 1 -> 0'}]
for key, known in (('sample.c refuse: 1 => 1 -> 0', 1), ('sample.c refuse: *', 1), ('mutated.c other: 2 => 2 -> 2 + 1', 1),
                   ('sample.c refuse: 1 => 1 -> 0 (2)', 0), ('sample.c other: *', 0), ('gone.c refuse: 1 => 1 -> 0', 0)):
    score.judged = lambda: {key}
    try:
        score.check_judged(every)
    except SystemExit as ended:
        assert not known and ended.code == f'score: no such mutant, in tests/mutations/equivalent: {key}', (key, ended.code)
    else:
        assert known, key
END
