# SPDX-License-Identifier: BSD-3-Clause
"""Mutants of one C or C++ source: each is an expression or statement beside the original one, chosen at run time by MUTANT(i).

Positions come from clang's syntax tree. What cannot be switched stays: constant expressions, static initialisers, macros'
bodies, operands of sizeof. An edit keeps the number of lines, so that messages and debuggers name the right one."""
import json
import re
import subprocess

NEVER = {'ConstantExpr', 'UnaryExprOrTypeTraitExpr', 'OffsetOfExpr', 'GenericSelectionExpr', 'StaticAssertDecl', 'GotoStmt',
         'DesignatedInitExpr', 'TypeTraitExpr', 'StmtExpr', 'GCCAsmStmt', 'CXXRecordDecl', 'CXXDefaultArgExpr'}
SAME = {'ImplicitCastExpr', 'ParenExpr', 'CStyleCastExpr'}  # of one operand, seen through
WRAPPED = {'CStyleCastExpr', 'ParenExpr', 'ImplicitCastExpr', 'ExprWithCleanups', 'CXXBindTemporaryExpr'}  # a statement, in these
CALLS = {'CallExpr', 'CXXMemberCallExpr', 'CXXOperatorCallExpr', 'CXXThrowExpr'}
FUNCTIONS = {'FunctionDecl', 'CXXMethodDecl', 'CXXConstructorDecl', 'CXXDestructorDecl'}
CPP = '.cc'
OTHER = {'+': '-', '-': '+', '*': '/', '/': '*', '%': '/', '&': '|', '|': '&', '^': '|', '<<': '>>', '>>': '<<'}
RELATION = {'<': ('<=', '>='), '<=': ('<', '>'), '>': ('>=', '<='), '>=': ('>', '<'), '==': ('!=',), '!=': ('==',)}
NEARER = {'<': 'ml_ + 1 < mr_', '<=': 'ml_ <= mr_ + 1', '>': 'ml_ > mr_ + 1', '>=': 'ml_ + 1 >= mr_'}


def syntax_tree(command, folder):
    """COMMAND: how the source is compiled."""
    words = [w for w in command if not w.startswith(('-W', '-flto', '-fprofile'))]
    at = words.index('-o')
    # Of C++ only what stands in our namespaces: the library's headers are 100 times that.
    more = ['-std=gnu++17', '-Xclang', '-ast-dump-filter=tess'] if any(w.endswith(CPP) for w in words) else []
    words = ['clang-14', '-w', '-fsyntax-only', '-Xclang', '-ast-dump=json', *more, *words[1:at], *words[at + 2:]]
    run = subprocess.run(words, cwd=folder, capture_output=True)
    if run.returncode:
        raise RuntimeError(run.stderr.decode()[:400])
    trees = run.stdout.replace(b'\n}\n{', b'\n},\n{')  # one behind another
    return {'inner': json.loads(b'[%s]' % trees)}


class Source:
    def __init__(self, name, text):
        self.name, self.text, self.list, self.function, self.counts = name, text, [], None, {}
        self.auto, self.flag = ('auto', 'bool') if name.endswith(CPP) else ('__auto_type', '_Bool')

    # ---- where a node stands ----

    def place(self, at):
        """(offset, length of its token, 'plain' | 'argument' | 'body'), or None: elsewhere."""
        if 'expansionLoc' not in at:
            return None if 'includedFrom' in at or 'offset' not in at else (at['offset'], at['tokLen'], 'plain')
        outer, spelled = at['expansionLoc'], at['spellingLoc']
        if 'includedFrom' in outer or 'offset' not in outer:
            return None
        if outer.get('isMacroArgExpansion'):
            macro = re.match(rb'\w*', self.text[outer['offset']:outer['offset'] + 40]).group()
            if 'includedFrom' in spelled or macro.startswith((b'_mm', b'assert')):
                return None
            return spelled['offset'], spelled['tokLen'], 'argument'
        return outer['offset'], outer['tokLen'], 'body'

    def range(self, node):
        r = node.get('range', {})
        begin, end = self.place(r.get('begin', {})), self.place(r.get('end', {}))
        if not begin or not end:
            return None
        if 'argument' in (begin[2], end[2]) and begin[2] != end[2]:
            return None
        to = end[0] + end[1]
        if end[2] == 'body':
            call = re.match(rb'\s*\(', self.text[to:])
            if call:
                to, depth = to + call.end(), 1
                while depth and to < len(self.text):
                    depth += {40: 1, 41: -1}.get(self.text[to], 0)
                    to += 1
        return (begin[0], to) if to > begin[0] else None

    def in_macro(self, node):
        r = node.get('range', {})
        ends = [self.place(r.get(e, {})) for e in ('begin', 'end')]
        return not all(ends) or (ends[0][2] == ends[1][2] == 'body' and ends[0][0] == ends[1][0])

    # ---- edits: [(begin, end, new text)] ----

    def mutant(self, node, mutation, where=None):
        """Its number in this file."""
        b, e = where or self.range(node)
        original = ' '.join(self.text[b:e].decode(errors='replace').split())[:100]
        key = f'{self.name} {self.function}: {original}{" => " if original else ""}{mutation}'
        self.counts[key] = n = self.counts.get(key, 0) + 1
        self.list.append({'key': key + (f' ({n})' if n > 1 else ''), 'file': self.name, 'line': self.text.count(b'\n', 0, b) + 1})
        return f'MUTANT({len(self.list)})'

    def apply(self, edits, b, e):
        out, at = [], b
        for eb, ee, new in sorted(edits):
            if eb >= at and ee <= e:
                out += [self.text[at:eb].decode(), new]
                at = ee
        return ''.join(out) + self.text[at:e].decode()

    def changed(self, node):
        """The text of an expression with its own mutants."""
        r = self.range(node)
        return self.apply(self.expression(node), *r)

    def replace(self, r, new):
        missing = self.text.count(b'\n', *r) - new.count('\n')
        return [(*r, new + '\n' * max(0, missing))]

    def children(self, node):
        return [edit for c in node.get('inner', []) for edit in self.expression(c)]

    # ---- expressions ----

    def expression(self, node):
        kind = node.get('kind')
        if not kind or kind in NEVER:
            return []
        if kind == 'VarDecl':
            return [] if node.get('storageClass') == 'static' or node.get('constexpr') else self.children(node)
        if kind == 'LambdaExpr':
            return self.statement(node['inner'][-1], True)
        r = self.range(node)
        if r and not self.in_macro(node):
            if kind == 'InitListExpr' and re.fullmatch(rb'\{\s*0\s*\}', self.text[slice(*r)]):
                return []
            make = {'BinaryOperator': self.binary, 'CompoundAssignOperator': self.assign, 'UnaryOperator': self.unary,
                    'IntegerLiteral': self.literal, 'FloatingLiteral': self.literal,
                    'ConditionalOperator': self.choice}.get(kind)
            if make:
                return make(node, r)
        if kind == 'ImplicitCastExpr' and node.get('castKind') == 'NullToPointer':
            return []
        if kind == 'CallExpr' and r and self.text[r[0]:r[0] + 3] == b'_mm':  # may need constants
            return [e for c in node['inner'] if self.bare(c)['kind'] != 'IntegerLiteral' for e in self.expression(c)]
        return self.children(node)

    @staticmethod
    def bare(node):
        while node['kind'] in SAME and node['kind'] != 'CStyleCastExpr':
            node = node['inner'][0]
        return node

    @staticmethod
    def type_of(node):
        return node.get('type', {}).get('desugaredQualType', node.get('type', {}).get('qualType', ''))

    def is_pointer(self, node):
        t = self.type_of(node)
        return t.rstrip().endswith(('*', ']', '*const', '*restrict')) or '(*)' in t

    def is_integer(self, node):
        return not self.is_pointer(node) and not re.search(r'float|double|struct|vector|__m', self.type_of(node))

    def operand(self, node, name):
        """(its declaration, its name): evaluated once for all mutants."""
        inner = self.bare(node)
        if node.get('castKind') == 'NullToPointer' or (self.is_pointer(node) and self.in_macro(inner)):
            return '', self.text[slice(*self.range(node))].decode()
        sign = '+' if inner.get('objectKind') == 'bitfield' else ''
        return f'{self.auto} {name} = {sign}({self.changed(node)}); ', name

    def binary(self, node, r):
        op, (left, right) = node['opcode'], node['inner']
        if op in ('=', ',') or not self.range(left) or not self.range(right):
            return self.children(node)
        if op in ('&&', '||'):
            m = self.mutant(node, f'{op} -> {"||" if op == "&&" else "&&"}')
            test = f'ml_ {"!=" if op == "&&" else "=="} {m}'
            left, right = (f'({self.flag})({self.changed(side)})' for side in (left, right))
            return self.replace(r, f'({{ {self.flag} ml_ = {left}; ({test}) ? {right} : ml_; }})')
        if op in OTHER:
            if self.is_pointer(right) or (self.is_pointer(left) and op not in '+-') or '__m' in self.type_of(node):
                return self.children(node)
            forms = [(f'{op} -> {OTHER[op]}', f'ml_ {OTHER[op]} mr_')]
        elif op in RELATION:
            forms = [(f'{op} -> {new}', f'ml_ {new} mr_') for new in RELATION[op]]
            if op in NEARER and self.is_integer(left) and self.is_integer(right) and self.bare(right)['kind'] != 'IntegerLiteral':
                forms.append((f'{op} one off', NEARER[op]))
        else:
            return self.children(node)
        numbers = [self.mutant(node, mutation) for mutation, _ in forms]
        (dl, l), (dr, rr) = self.operand(left, 'ml_'), self.operand(right, 'mr_')
        named = lambda form: ' '.join({'ml_': l, 'mr_': rr}.get(w, w) for w in form.split())
        cases = ''.join(f'{n} ? {named(form)} : ' for n, (_, form) in zip(numbers, forms))
        return self.replace(r, f'({{ {dl}{dr}{cases}{named(f"ml_ {op} mr_")}; }})')

    def assign(self, node, r, deleted=False):
        left, right = node['inner']
        op = node['opcode'][:-1]
        if not self.range(left) or not self.range(right) or op not in OTHER or (self.is_pointer(left) and op not in '+-'):
            return self.children(node)
        to = self.text[slice(*self.range(left))].decode()
        value = self.changed(right)
        cases = [f'{self.mutant(node, "deleted")} ? (void)0 : '] if deleted else []
        void = '(void)' if deleted else ''
        cases.append(f'{self.mutant(node, f"{op}= -> {OTHER[op]}=")} ? {void}({to} {OTHER[op]}= mr_) : ')
        return self.replace(r, f'({{ {self.auto} mr_ = ({value}); {"".join(cases)}{void}({to} {op}= mr_); }})')

    def unary(self, node, r, deleted=False):
        op, of = node['opcode'], node['inner'][0]
        if not self.range(of) or op not in ('!', '-', '++', '--'):
            return self.children(node)
        if op in '!-':
            m = self.mutant(node, f'{op} deleted')
            text = self.changed(of)
            return self.replace(r, f'(!({text}) != {m})' if op == '!' else f'({{ {self.auto} ml_ = ({text}); {m} ? ml_ : -ml_; }})')
        text = self.text[slice(*self.range(of))].decode()
        form = f'{text}{{}}' if node.get('isPostfix') else f'{{}}{text}'
        new = '--' if op == '++' else '++'
        void = '(void)' if deleted else ''
        cases = f'{self.mutant(node, "deleted")} ? (void)0 : ' if deleted else ''
        m = self.mutant(node, f'{op} -> {new}')
        return self.replace(r, f'({cases}{m} ? {void}({form.format(new)}) : {void}({form.format(op)}))')

    def literal(self, node, r):
        text = self.text[slice(*r)].decode()
        number = re.fullmatch(r'(0[xX][0-9a-fA-F]+|[0-9][0-9.]*(?:[eE][-+]?[0-9]+)?)([uUlLfF]*)', text)
        if not number:
            return []
        digits, suffix = number.groups()
        new = ('0' if digits == '1' else f'({digits}{suffix} + 1)') if suffix else {'0': '1', '1': '0'}.get(digits, f'({digits} + 1)')
        m = self.mutant(node, f'{text} -> {new.strip("()")}')
        return self.replace(r, f'({m} ? {new} : {text})')

    def choice(self, node, r):
        return self.condition(node['inner'][0]) + [e for c in node['inner'][1:] for e in self.expression(c)]

    def condition(self, node):
        r, inner = self.range(node), self.bare(node)
        if not r or self.in_macro(node) or inner.get('opcode') in RELATION or inner.get('opcode') == '!':
            return self.expression(node)
        m = self.mutant(node, 'negated')
        return self.replace(r, f'(!!({self.changed(node)}) != {m})')

    # ---- statements ----

    def statement(self, node, last=False):
        kind, inner = node.get('kind'), node.get('inner', [])
        r = self.range(node) if kind else None
        if not r:
            return []
        if kind == 'DoStmt' and self.in_macro(node):  # TRY(call)
            edits = self.children(node)
            return self.deleted(node, r, self.apply(edits, *r))
        if self.in_macro(node) and kind not in (*CALLS, 'CStyleCastExpr'):
            return self.children(node)
        if kind == 'CompoundStmt':
            return [e for i, c in enumerate(inner) for e in self.statement(c, last and i == len(inner) - 1)]
        if node.get('hasVar') or node.get('hasInit') or node.get('isConstexpr'):
            return [e for c in inner for e in self.statement(c)]
        if kind == 'CXXForRangeStmt':
            return self.statement(inner[-1])
        if kind in ('CXXTryStmt', 'CXXCatchStmt'):
            return [e for c in inner if c.get('kind') in ('CompoundStmt', 'CXXCatchStmt') for e in self.statement(c)]
        if kind == 'IfStmt':
            return self.condition(inner[0]) + [e for c in inner[1:] for e in self.statement(c)]
        if kind == 'WhileStmt':
            return self.condition(inner[0]) + self.statement(inner[-1])
        if kind == 'ForStmt':
            edits = self.expression(inner[0])
            return edits + (self.condition(inner[2]) if inner[2].get('kind') else []) + self.statement(inner[4])
        if kind == 'DoStmt':
            return self.statement(inner[0]) + self.condition(inner[1])
        if kind in ('SwitchStmt', 'CaseStmt', 'DefaultStmt', 'LabelStmt'):
            return [e for c in inner[:-1] for e in self.expression(c)] + self.statement(inner[-1])
        if kind in ('BreakStmt', 'ContinueStmt'):
            return self.deleted(node, r, self.text[slice(*r)].decode())
        if kind == 'ReturnStmt':
            text = self.apply(self.children(node), *r)
            return self.replace(r, text) if last else self.deleted(node, r, text)
        what = node
        while what['kind'] in WRAPPED:
            what = what['inner'][0]
        if what['kind'] in CALLS or (what['kind'] == 'BinaryOperator' and what['opcode'] == '='):
            m = self.mutant(node, 'deleted')
            return self.replace(r, f'({m} ? (void)0 : (void)({self.apply(self.children(what), *r)}))')
        if what['kind'] == 'CompoundAssignOperator':
            return self.assign(what, r, True)
        if what['kind'] == 'UnaryOperator' and what['opcode'] in ('++', '--') and self.range(what['inner'][0]):
            return self.unary(what, r, True)
        return self.expression(node)

    def deleted(self, node, r, text):
        return self.replace(r, f'if ({self.mutant(node, "deleted")}) (void)0; else {text}')

    def body(self, node, body):
        """Of a function: also one that does nothing at all."""
        self.function = node['name']
        b, e = self.range(body)
        returns = node['type']['qualType'].split('(')[0].strip()
        what = '' if returns == 'void' else ' {}' if self.name.endswith(CPP) else f' ({returns}){{0}}'
        if re.search(r'(&|auto|\b[A-Z]\w*)$', returns):  # of a class, which may have no value by default
            return self.statement(body, True)
        m = self.mutant(node, f'return{" 0" if what else ""} at once', (b, b))
        return [(b + 1, b + 1, f' if ({m}) return{what};')] + self.statement(body, True)


def lambdas(node):
    if node.get('kind') == 'LambdaExpr':
        return [node]
    return [found for c in node.get('inner', []) for found in lambdas(c)]


def functions(node):
    """(declaration, its body): of C++ also those of namespaces and classes, and lambdas of variables beside them. No templates."""
    for c in node.get('inner', []):
        kind = c.get('kind')
        if kind in FUNCTIONS:
            body = next((b for b in c.get('inner', []) if b.get('kind') == 'CompoundStmt'), None)
            if body and not c.get('isImplicit') and not c.get('explicitlyDefaulted'):
                yield c, body
        elif kind in ('TranslationUnitDecl', 'NamespaceDecl', 'LinkageSpecDecl') or (kind == 'CXXRecordDecl' and 'name' in c):
            yield from functions(c)
        elif kind == 'VarDecl':
            for found in lambdas(c):
                yield {**c, 'type': {'qualType': 'auto'}}, found['inner'][-1]


def mutate(name, path, tree, without=()):
    """(the new text without what surrounds it, its mutants). WITHOUT: functions to leave as they are."""
    source = Source(name, path.read_bytes())
    edits = []
    for node, body in functions(tree):
        if source.range(body) and not source.in_macro(body) and node['name'].lstrip('~') not in without:
            edits += source.body(node, body)
    return source.apply(edits, 0, len(source.text)), source.list
