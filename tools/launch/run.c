/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera run: starts ranks of any program, on this host or as one of several. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands.h"
#include "tools/support/command_line.h"
#include "tools/support/mesh.h"
#include "restart.h"
#include "run_hosts.h"

enum {
    KEY_NO_PREFIX = 0x100,
    KEY_BIND,
    KEY_RESTARTS,
    KEY_REPLACEMENTS,
    KEY_NNODES,
    KEY_NODE_RANK,
    KEY_RENDEZVOUS,
    KEY_HOSTS,
    KEY_HOSTFILE,
    KEY_AGENT,
    KEY_FOLLOW,
    KEY_MESH,
    RANKS_MAX = 4096,
    NODES_MAX = 1024
};

typedef struct {
    launch_options launch;
    restart_options restart;
    int ranks_given, node_given;
    int32_t nodes, n_counts;
    int32_t counts[NODES_MAX]; /* ranks of each node, or of every node when there is one */
    char host[256];
    run_hosts_options hosts;
} run_arguments;

static const struct argp_option options[] = {
    { "ranks", 'n', "N", 0, "how many ranks to start; with --nnodes on every host, or a number for each: 4,4,2", 0 },
    { "mesh", KEY_MESH, "MESH", 0,
      "the ranks as a grid, for a program of several groups: dp=4,tp=2; the last dimension lies on one host", 0 },
    { "restarts", KEY_RESTARTS, "N", 0,
      "start again, at most N times, when ranks are lost; with --ranks MIN:MAX on those that are left", 0 },
    { "replacements", KEY_REPLACEMENTS, "N", 0,
      "with TESSERA_MIRROR: replace at most N lost ranks; then those that are left go on, with --ranks MIN:MAX", 0 },
    { "nnodes", KEY_NNODES, "N", 0, "how many hosts take part; call this on each of them", 1 },
    { "node-rank", KEY_NODE_RANK, "R", 0, "which of them this one is, from 0", 1 },
    { "rendezvous", KEY_RENDEZVOUS, "HOST:PORT", 0, "where all meet: an address of node 0 and a free port there", 1 },
    { "hosts", KEY_HOSTS, "HOST:N,…", 0, "start N ranks on each of these hosts, from here", 1 },
    { "hostfile", KEY_HOSTFILE, "FILE", 0, "the same from a file: a line \"HOST:N\" or \"HOST slots=N\" for each", 1 },
    { "agent", KEY_AGENT, "COMMAND", 0, "what runs a command on a host: COMMAND HOST TEXT (ssh -x)", 1 },
    { "follow", KEY_FOLLOW, NULL, OPTION_HIDDEN, NULL, 1 },
    { "no-prefix", KEY_NO_PREFIX, NULL, 0, "leave the output as it is, without \"[rank] \" before each line", 2 },
    { "bind", KEY_BIND, "none|core", 0, "bind each rank to cores of its own (the default, when there are enough)", 2 },
    { NULL, 0, NULL, 0, NULL, 0 },
};

static error_t parse_number(struct argp_state *state, const char *from, const char *text, long least, long most,
                            int32_t *out) {
    char *end;
    long n = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || n < least || n > most)
        return tool_usage_error(state, "%s is '%.40s', expected %ld to %ld", from, text, least, most);
    *out = (int32_t)n;
    return 0;
}

static error_t parse_ranks(struct argp_state *state, run_arguments *a, const char *from, const char *text) {
    char part[24];
    error_t error = 0;
    a->n_counts = 0;
    if (strchr(text, ':')) { /* MIN:MAX */
        if (restart_parse_ranks(text, &a->restart.least, &a->restart.most) != 0)
            return tool_usage_error(state, "%s is '%.40s', expected MIN:MAX, 1 to %d", from, text, RANKS_MAX);
        a->ranks_given = a->n_counts = 1;
        a->launch.ranks = a->counts[0] = a->restart.most;
        return 0;
    }
    for (const char *at = text; !error; at++) {
        size_t length = strcspn(at, ",");
        if (a->n_counts == NODES_MAX || length >= sizeof part)
            return tool_usage_error(state, "%s is '%.40s', expected 1 to %d", from, text, RANKS_MAX);
        snprintf(part, sizeof part, "%.*s", (int)length, at);
        error =
            parse_number(state, from, length == strlen(text) ? text : part, 1, RANKS_MAX, &a->counts[a->n_counts++]);
        at += length;
        if (!*at)
            break;
    }
    a->ranks_given = 1;
    a->launch.ranks = a->counts[0];
    return error;
}

static error_t parse_hosts(struct argp_state *state, run_arguments *a, int is_file, const char *text) {
    char why[256];
    if (a->hosts.hosts.n)
        return tool_usage_error(state, "--hosts and --hostfile are one list: give one of them, once");
    if ((is_file ? hosts_read : hosts_parse)(text, &a->hosts.hosts, why) != 0)
        return tool_usage_error(state, "%s: %s", is_file ? "--hostfile" : "--hosts", why);
    return 0;
}

static error_t parse_rendezvous(struct argp_state *state, run_arguments *a, const char *text) {
    const char *colon = strrchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : 0;
    int bracketed = length > 2 && text[0] == '[' && text[length - 1] == ']';
    if (!length || length >= sizeof a->host)
        return tool_usage_error(state, "--rendezvous is '%.100s', expected HOST:PORT", text);
    snprintf(a->host, sizeof a->host, "%.*s", (int)length - 2 * bracketed, text + bracketed);
    a->launch.host = a->host;
    a->hosts.rendezvous = text;
    return parse_number(state, "--rendezvous: the port", colon + 1, 1, 65535, &a->launch.port);
}

/* ---- several hosts ------------------------------------------------------------------------------ */

static error_t place_on_hosts(struct argp_state *state, run_arguments *a) {
    int one_count = a->n_counts == 1;
    if (a->nodes > 1 && (a->restart.restarts || a->restart.most))
        return tool_usage_error(state, "--restarts and MIN:MAX are for one host");
    if (a->nodes <= 1 && (a->nodes == 0 || a->node_given || one_count)) {
        if (a->nodes == 0 && (a->node_given || a->launch.host || !one_count))
            return tool_usage_error(state, "--node-rank, --rendezvous and a list after -n need --nnodes");
        if (a->launch.node > 0)
            return tool_usage_error(state, "--node-rank is %d, but --nnodes is 1: nodes count from 0",
                                    (int)a->launch.node);
        return 0;
    }
    if (!a->node_given || !a->launch.host)
        return tool_usage_error(state, "--nnodes needs --node-rank R and --rendezvous HOST:PORT");
    if (a->launch.node >= a->nodes)
        return tool_usage_error(state, "--node-rank is %d, but --nnodes is %d: nodes count from 0", (int)a->launch.node,
                                (int)a->nodes);
    if (!one_count && a->n_counts != a->nodes)
        return tool_usage_error(state, "-n has %d numbers for %d nodes", (int)a->n_counts, (int)a->nodes);
    for (int32_t n = 0; n < a->nodes; n++) {
        int32_t count = a->counts[one_count ? 0 : n];
        a->launch.world += count;
        a->launch.first_rank += n < a->launch.node ? count : 0;
    }
    a->launch.ranks = a->counts[one_count ? 0 : a->launch.node];
    return 0;
}

static error_t count_hosts(struct argp_state *state, run_arguments *a) {
    host_list *l = &a->hosts.hosts;
    int64_t total = 0;
    if (a->nodes || a->node_given)
        return tool_usage_error(state, "--hosts calls --nnodes and --node-rank on each host: leave them out");
    if (a->restart.restarts || a->restart.most || a->n_counts > 1)
        return tool_usage_error(state, "--restarts, MIN:MAX and a list after -n do not go with --hosts");
    for (int32_t i = 0; i < l->n; i++) {
        if (!l->all[i].ranks && !a->ranks_given)
            return tool_usage_error(state, "how many ranks on host %s? %s:N, or -n N for all that say nothing",
                                    l->all[i].name, l->all[i].name);
        l->all[i].ranks = l->all[i].ranks ? l->all[i].ranks : a->counts[0];
        total += l->all[i].ranks;
    }
    return total > RANKS_MAX ? tool_usage_error(state, "%lld ranks, expected at most %d", (long long)total, RANKS_MAX)
                             : 0;
}

/* ---- a mesh -------------------------------------------------------------------------------------- */

static error_t read_mesh(struct argp_state *state, run_arguments *a, tool_mesh *mesh) {
    const char *ours = getenv("TESSERA_MESH");
    a->launch.mesh = a->launch.mesh ? a->launch.mesh : ours && *ours ? ours : NULL;
    *mesh = (tool_mesh){ .ranks = 0 };
    if (a->launch.mesh && tool_mesh_parse("--mesh", a->launch.mesh, mesh) != TESS_OK)
        return tool_usage_error(state, "%s", tess_last_error());
    if (mesh->ranks > RANKS_MAX)
        return tool_usage_error(state, "--mesh %s has %d ranks, expected at most %d", a->launch.mesh, (int)mesh->ranks,
                                RANKS_MAX);
    return 0;
}

static error_t check_host(struct argp_state *state, const run_arguments *a, const tool_mesh *mesh, int32_t ranks,
                          const char *name) {
    if (ranks % mesh->last == 0)
        return 0;
    return tool_usage_error(state, "--mesh %s: %d ranks of %s lie on one host, which the %d of %s are not made of",
                            a->launch.mesh, (int)mesh->last, mesh->last_name, (int)ranks, name);
}

/* The innermost dimension's ranks are neighbours, and every host has whole groups of them. */
static error_t place_mesh(struct argp_state *state, const run_arguments *a, const tool_mesh *mesh) {
    const host_list *l = &a->hosts.hosts;
    int32_t total = l->n ? 0 : a->launch.world ? a->launch.world : a->launch.ranks;
    error_t error = 0;
    char name[32];
    if (!mesh->ranks)
        return 0;
    if (a->restart.most)
        return tool_usage_error(state, "--mesh %s is of %d ranks: MIN:MAX ranks have no mesh", a->launch.mesh,
                                (int)mesh->ranks);
    for (int32_t i = 0; i < l->n && !error; i++) {
        total += l->all[i].ranks;
        error = check_host(state, a, mesh, l->all[i].ranks, l->all[i].name);
    }
    for (int32_t n = 0; a->launch.world && n < a->nodes && !error; n++) {
        snprintf(name, sizeof name, "node %d", (int)n);
        error = check_host(state, a, mesh, a->counts[a->n_counts == 1 ? 0 : n], name);
    }
    if (!error && total != mesh->ranks)
        error = tool_usage_error(state, "--mesh %s is a mesh of %d ranks, but %d are started", a->launch.mesh,
                                 (int)mesh->ranks, (int)total);
    return error;
}

static error_t finish(struct argp_state *state, run_arguments *a) {
    const char *ours = getenv("TESSERA_RANKS"), *world = getenv("WORLD_SIZE");
    tool_mesh mesh;
    error_t error = read_mesh(state, a, &mesh);
    if (error)
        return error;
    if (!a->launch.argv)
        return tool_usage_error(state, "no program given: tessera run -n N -- PROGRAM [ARGUMENT…]");
    if (a->hosts.hosts.n)
        return (error = count_hosts(state, a)) ? error : place_mesh(state, a, &mesh);
    if (a->hosts.agent)
        return tool_usage_error(state, "--agent needs --hosts or --hostfile");
    if (!a->ranks_given && ours && *ours)
        error = parse_ranks(state, a, "TESSERA_RANKS", ours);
    else if (!a->ranks_given && world && *world)
        error = parse_ranks(state, a, "WORLD_SIZE", world);
    else if (!a->ranks_given && mesh.ranks && !a->nodes) {
        a->launch.ranks = a->counts[0] = mesh.ranks;
        a->ranks_given = a->n_counts = 1;
    } else if (!a->ranks_given)
        return tool_usage_error(state, "how many ranks? -n N is missing");
    if (!error)
        error = place_on_hosts(state, a);
    if (!error)
        error = place_mesh(state, a, &mesh);
    if (error)
        return error;
    if (launch_wanted("run", a->launch.world ? a->launch.world : a->launch.ranks) < 0)
        return EINVAL;
    if (getenv("RANK"))
        return tool_usage_error(state, "RANK is set: this is a rank already, of another launcher");
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    run_arguments *a = state->input;
    switch (key) {
    case 'n': return parse_ranks(state, a, "-n", text);
    case KEY_NNODES: return parse_number(state, "--nnodes", text, 1, NODES_MAX, &a->nodes);
    case KEY_NODE_RANK:
        a->node_given = 1;
        return parse_number(state, "--node-rank", text, 0, NODES_MAX - 1, &a->launch.node);
    case KEY_MESH: a->launch.mesh = text; return 0;
    case KEY_RENDEZVOUS: return parse_rendezvous(state, a, text);
    case KEY_RESTARTS: return parse_number(state, "--restarts", text, 1, 10000, &a->restart.restarts);
    case KEY_REPLACEMENTS:
        return parse_number(state, "--replacements", text, 0, RESTART_MOST_REPLACED, &a->restart.replacements);
    case KEY_HOSTS: return parse_hosts(state, a, 0, text);
    case KEY_HOSTFILE: return parse_hosts(state, a, 1, text);
    case KEY_AGENT: a->hosts.agent = text; return 0;
    case KEY_FOLLOW: a->launch.follow = 1; return 0;
    case KEY_NO_PREFIX: a->launch.prefix = 0; return 0;
    case KEY_BIND:
        if (strcmp(text, "none") != 0 && strcmp(text, "core") != 0)
            return tool_usage_error(state, "--bind is '%.40s', expected none or core", text);
        a->launch.bind = strcmp(text, "core") == 0;
        return 0;
    case ARGP_KEY_ARGS: a->launch.argv = state->argv + state->next; return 0;
    case ARGP_KEY_END: return finish(state, a);
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const tool_page page = {
    .command = "run",
    .usage = "[OPTION…] [--] PROGRAM [ARGUMENT…]",
    .doc =
        "Starts ranks of a program, binds them to cores, puts their output together and stops all when one fails. The "
        "exit code is that of the rank that failed first.",
    .examples = "tessera run -n 4 -- ./my_trainer --epochs 3\n"
                "  four ranks on this host\n"
                "tessera run --nnodes 2 --node-rank 0 --rendezvous node1:29400 -n 4 -- ./my_trainer\n"
                "  the first half of eight ranks on two hosts; with --node-rank 1 on the other\n"
                "tessera run --hosts node1:4,node2:4 -- ./my_trainer\n"
                "  all eight from one of them, by ssh",
};

int cmd_run(int argc, char **argv) {
    static const struct argp argp = { options, parse, NULL, NULL, NULL, NULL, NULL };
    run_arguments a = { .launch = { .prefix = 1, .bind = 1 }, .restart = { .replacements = RESTART_MOST_REPLACED } };
    int code = tool_parse_page(&page, &argp, ARGP_IN_ORDER, argc, argv, &a);
    if (!code)
        code = a.hosts.hosts.n ? run_hosts(&a.launch, &a.hosts) : restart_launch(&a.launch, &a.restart);
    hosts_free(&a.hosts.hosts);
    return code;
}
