/* SPDX-License-Identifier: BSD-3-Clause */
/* Ways through a file system that is drawn by chance: where each leads, and whose hands it passes. A walk that is done
 * again for each link says the same. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/plugin/trusted_path.h"
#include "tests/unit/drawn.h"

enum { NODES = 24, ME = 500, OTHER = 700, LINKS = 40 };
typedef struct {
    int parent;
    char name[8], link[64]; /* link: where it leads; "" is none */
    mode_t mode;
    uid_t uid;
    gid_t gid;
} node;
static node nodes[NODES];
static int n_nodes, broken_stat, broken_link;
static const char *cwd;

static int child(int of, const char *name, size_t n) {
    for (int i = 1; i < n_nodes; i++)
        if (nodes[i].parent == of && strlen(nodes[i].name) == n && strncmp(nodes[i].name, name, n) == 0)
            return i;
    return -1;
}
/* The node of a path without links, dots and double slashes, as the source asks; -1: none. */
static int plain_node(const char *path) {
    int at = 0;
    assert_int_equal(*path, '/');
    while (*path == '/' && path[1]) {
        const size_t n = strcspn(++path, "/");
        at = child(at, path, n);
        if (at < 0 || !n)
            return -1;
        path += n;
    }
    return *path && path[1] ? -1 : at;
}
static int fake_lstat(const char *path, struct stat *s) {
    const int at = plain_node(path);
    errno = ENOENT;
    if (at < 0)
        return -1;
    *s = (struct stat){ .st_mode = nodes[at].mode, .st_uid = nodes[at].uid, .st_gid = nodes[at].gid };
    return 0;
}
static int fake_stat(const char *path, struct stat *s) {
    errno = EIO;
    return broken_stat && --broken_stat == 0 ? -1 : fake_lstat(path, s);
}
static ssize_t fake_readlink(const char *path, char *out, size_t n) {
    const int at = plain_node(path);
    assert_true(at >= 0 && n == 4095);
    errno = EIO;
    if (broken_link)
        return broken_link == 2 ? 0 : -1;
    memcpy(out, nodes[at].link, strlen(nodes[at].link));
    return (ssize_t)strlen(nodes[at].link);
}
static char *fake_getcwd(char *out, size_t n) {
    errno = ENOENT;
    return cwd && strlen(cwd) < n ? strcpy(out, cwd) : NULL;
}
#define lstat(path, s) fake_lstat(path, s)
#define stat(path, s) fake_stat(path, s)
#define readlink(path, out, n) fake_readlink(path, out, n)
#define getcwd(out, n) fake_getcwd(out, n)
#define geteuid() ME
#include "core/plugin/trusted_path.c"
#undef stat

/* ---- the walk again ---- */

static const char *refusal; /* a piece of the reason; null: none */
static int links_left;

static int may_write(const node *n) {
    return n->mode & S_IWOTH || (n->mode & S_IWGRP && n->gid != n->uid);
}
static int refuse(const char *why) {
    refusal = refusal ? refusal : why;
    return -1;
}

/* From `at` on; the node, or -1 with the refusal. A folder on the way may be sticky. */
static int walk_on(int at, const char *path) {
    if (*path == '/')
        at = 0;
    while (*path && !refusal) {
        path += strspn(path, "/");
        const size_t n = strcspn(path, "/");
        const char *rest = path + n;
        if (!n)
            break;
        if (n == 2 && strncmp(path, "..", 2) == 0) {
            at = nodes[at].parent;
        } else if (n != 1 || *path != '.') {
            const int next = child(at, path, n);
            if (next < 0)
                return refuse("no such ");
            if (nodes[next].uid != 0 && nodes[next].uid != ME)
                return refuse("who is neither root nor you");
            if (S_ISLNK(nodes[next].mode)) {
                if (--links_left < 0)
                    return refuse("more than 40 symbolic links");
                at = walk_on(at, nodes[next].link);
                if (at >= 0 && rest[strspn(rest, "/")] && !S_ISDIR(nodes[at].mode))
                    return refuse("is not a directory");
            } else {
                if (S_ISDIR(nodes[next].mode) && may_write(&nodes[next]) && !(nodes[next].mode & S_ISVTX))
                    return refuse("can be written by others");
                if (!S_ISDIR(nodes[next].mode) && rest[strspn(rest, "/")])
                    return refuse("is not a directory");
                at = next;
            }
        }
        path = rest;
    }
    return refusal ? -1 : at;
}

static int walk_again(const char *path, uint32_t want) {
    refusal = NULL;
    links_left = LINKS;
    if (nodes[0].uid != 0 && nodes[0].uid != ME)
        return refuse("who is neither root nor you");
    if (may_write(&nodes[0]) && !(nodes[0].mode & S_ISVTX))
        return refuse("can be written by others");
    const int from = *path == '/' ? 0 : walk_on(0, cwd), at = from < 0 ? -1 : walk_on(from, path);
    if (at < 0)
        return -1;
    if (want == TESS_PATH_FILE && S_ISDIR(nodes[at].mode))
        return refuse("is a directory, not a file");
    if (want == TESS_PATH_FILE && !S_ISREG(nodes[at].mode))
        return refuse("is not a regular file");
    if (want == TESS_PATH_DIRECTORY && !S_ISDIR(nodes[at].mode))
        return refuse("is not a directory");
    if (may_write(&nodes[at]) || (want == TESS_PATH_FILE && may_write(&nodes[nodes[at].parent])))
        return refuse("can be written by others");
    return at;
}

/* ---- file systems and paths by chance ---- */

static uint64_t seed;
#define draw(below) ((int)drawn64(&seed, (uint64_t)(below)))

static void draw_path(char out[64], int most) {
    static const char *const parts[] = { "a", "b", "c", "..", ".", "", "ab" };
    int n = 0;
    out[0] = 0;
    if (draw(2))
        strcpy(out, "/"), n = 1;
    for (int parts_left = 1 + draw(most); parts_left > 0; parts_left--)
        n += snprintf(out + n, (size_t)(64 - n), "%s%s", parts[draw(7)], parts_left > 1 ? "/" : "");
}

static void draw_world(int careless) {
    static const char *const names[] = { "a", "b", "c", "ab" };
    static const uid_t uids[] = { 0, ME, ME, ME, 1, OTHER };
    n_nodes = 0;
    for (int i = 0; i < NODES; i++) {
        node *n = &nodes[n_nodes];
        memset(n, 0, sizeof *n);
        n->parent = i ? draw(n_nodes) : 0;
        snprintf(n->name, sizeof n->name, "%s", names[draw(4)]);
        if (i && (!S_ISDIR(nodes[n->parent].mode) || child(n->parent, n->name, strlen(n->name)) >= 0))
            continue;
        n->uid = uids[draw(careless ? 6 : 4)];
        n->gid = draw(2) ? n->uid : ME;
        const int kind = i ? draw(8) : 0;
        n->mode = kind < 3 ? S_IFDIR | 0755 : kind < 5 ? S_IFREG | 0644 : kind < 7 ? S_IFLNK | 0777 : S_IFIFO | 0644;
        if (!S_ISLNK(n->mode) && careless && draw(4) == 0)
            n->mode |= draw(2) ? S_IWOTH : S_IWGRP;
        if (S_ISDIR(n->mode) && draw(3) == 0)
            n->mode |= S_ISVTX;
        if (S_ISLNK(n->mode))
            do
                draw_path(n->link, 4);
            while (!n->link[0]);
        n_nodes++;
    }
}

static void text_of(int at, char out[256]) {
    char rest[256] = "";
    for (; at; at = nodes[at].parent) {
        char longer[300];
        snprintf(longer, sizeof longer, "/%s%s", nodes[at].name, rest);
        memcpy(rest, longer, sizeof rest);
    }
    strcpy(out, *rest ? rest : "/");
}

static char real[4096], reason[512];

static void test_path_walks__lead_where_each_step_says(void **state) {
    (void)state;
    int led = 0, refused = 0;
    seed = 3;
    for (int round = 0; round < 6000; round++) {
        char path[64], to[256];
        const uint32_t want = draw(2) ? TESS_PATH_FILE : TESS_PATH_DIRECTORY;
        draw_world(round % 3 == 0);
        int dir = draw(n_nodes);
        while (!S_ISDIR(nodes[dir].mode))
            dir = nodes[dir].parent;
        char here[256];
        text_of(dir, here);
        cwd = here;
        draw_path(path, 5);
        const int at = walk_again(path, want);
        snprintf(real, sizeof real, "untouched");
        const tess_status s = tess__trusted_path(path, want, real, reason, sizeof reason);
        assert_int_equal(s, at < 0 ? TESS_E_INVALID : TESS_OK);
        if (at < 0) {
            if (!strstr(reason, refusal))
                fail_msg("%s: '%s' is not in '%s'", path, refusal, reason);
            assert_string_equal(real, "untouched");
            refused++;
        } else {
            text_of(at, to);
            assert_string_equal(real, to);
            led++;
        }
    }
    assert_true(led > 600 && refused > 1000);
}

/* ---- by hand ---- */

static void one_file(const char *link) {
    memset(nodes, 0, sizeof nodes);
    nodes[0].mode = S_IFDIR | 0755;
    nodes[1] = (node){ .name = "f", .mode = S_IFREG | 0644, .uid = ME, .gid = ME };
    nodes[2] = (node){ .name = "l", .mode = S_IFLNK | 0777 };
    snprintf(nodes[2].link, sizeof nodes[2].link, "%s", link);
    n_nodes = 3;
    cwd = "/";
}

static void says(const char *path, const char *why) {
    assert_int_equal(tess__trusted_path(path, TESS_PATH_FILE, real, reason, sizeof reason), TESS_E_INVALID);
    assert_string_equal(reason, why);
}

static void test_path_walks__what_the_system_refuses_is_said(void **state) {
    (void)state;
    one_file("f");
    broken_link = 1;
    says("/l", "/l: Input/output error");
    broken_link = 2;
    says("/l", "/l: empty link");
    broken_link = 0;
    broken_stat = 1;
    says("/f", "/: Input/output error");
    broken_stat = 2;
    says("/f", "/f: Input/output error");
    broken_stat = 3;
    says("/f", "/: Input/output error");
    broken_stat = 0;
    cwd = NULL;
    says("f", "working directory: No such file or directory");
    cwd = "/";
}

static void test_path_walks__modes_and_owners_are_shown(void **state) {
    (void)state;
    one_file("f");
    nodes[1].mode = S_IFREG | S_ISUID | 0666;
    says("/f", "/f can be written by others (mode 4666)");
    nodes[1].mode = S_IFREG | 0664, nodes[1].gid = ME + 1;
    says("/f", "/f can be written by others (mode 0664)");
    nodes[1].uid = OTHER;
    says("/f", "/f belongs to user 700, who is neither root nor you");
    nodes[0].uid = OTHER;
    says("/f", "/ belongs to user 700, who is neither root nor you");
    nodes[0].uid = 0, nodes[0].mode = S_IFDIR | 0777;
    says("/f", "/ can be written by others (mode 0777)");
}

/* A path has room for 4095 bytes, behind the working directory too, and behind a link. */
static void test_path_walks__too_long_is_said(void **state) {
    (void)state;
    static char path[5000];
    one_file("f");
    for (int n = 4080; n < 4110; n++) {
        for (int relative = 0; relative < 2; relative++) {
            memset(path, '/', sizeof path); /* many slashes are one */
            if (relative)
                memcpy(path, "./", 2);
            strcpy(path + n - 1, "f");
            const int bytes = n + 1 + relative; /* as it is put together: a slash before it, and "/" before that */
            const tess_status s = tess__trusted_path(path, TESS_PATH_FILE, real, reason, sizeof reason);
            assert_int_equal(s, bytes < 4096 ? TESS_OK : TESS_E_INVALID);
            if (s)
                assert_string_equal(reason, "path too long");
        }
        memset(path, '/', sizeof path);
        memcpy(path, "/l", 2);
        path[n] = 0;
        nodes[1].mode = S_IFDIR | 0755;
        const tess_status s = tess__trusted_path(path, TESS_PATH_DIRECTORY, real, reason, sizeof reason);
        assert_int_equal(s, n + 1 < 4096 ? TESS_OK : TESS_E_INVALID);
        nodes[1].mode = S_IFREG | 0644;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path_walks__lead_where_each_step_says),
        cmocka_unit_test(test_path_walks__what_the_system_refuses_is_said),
        cmocka_unit_test(test_path_walks__modes_and_owners_are_shown),
        cmocka_unit_test(test_path_walks__too_long_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
