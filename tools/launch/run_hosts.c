/* SPDX-License-Identifier: BSD-3-Clause */
#include "run_hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "tools/support/say.h"
#include "tools/commands.h"
#include "tools/support/command_line.h"

extern char **environ;

enum { AGENT_WORDS = 32, SECRET_RANDOM = 32 };
static const char default_agent[] = "ssh -x";

typedef struct {
    const launch_options *launch;
    const run_hosts_options *options;
    char program[4096], folder[4096], agent[1024];
    char secret[LAUNCH_SECRET_BYTES];
    char *words[AGENT_WORDS]; /* the agent's command line */
    int n_words;
    char **lists; /* [host * (AGENT_WORDS + 3)]: an argv for each host */
    launch_agent *agents;
    int32_t n;
} hosts_run;

/* ---- the command on a host ---------------------------------------------------------------------- */

/* Our own variables and those that hold a place among ranks stay here; so does the secret. */
static int is_for_all(const char *entry) {
    static const char *const kept[] = { "TESSERA_SECRET", "TESSERA_KV=", "TESSERA_RESTART", "TESSERA_RANKS=" };
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (strncmp(entry, kept[i], strlen(kept[i])) == 0)
            return 0;
    return strncmp(entry, "TESSERA_", 8) == 0 || strncmp(entry, "OMP_NUM_THREADS=", 16) == 0;
}

static void put_environment(FILE *f) {
    fputs("exec env", f);
    for (size_t i = 0; environ[i]; i++)
        if (is_for_all(environ[i]))
            tool_put_word(f, environ[i]);
}

static void put_ranks(FILE *f, const hosts_run *r) {
    fputs(" -n ", f);
    for (int32_t i = 0; i < r->n; i++)
        fprintf(f, "%s%d", i ? "," : "", (int)r->options->hosts.all[i].ranks);
}

static void put_rendezvous(FILE *f, const hosts_run *r) {
    char place[HOST_NAME_BYTES + 16];
    const char *name = r->options->hosts.all[0].name;
    snprintf(place, sizeof place, strchr(name, ':') ? "[%s]:%d" : "%s:%d",
             strchr(name, '@') ? strchr(name, '@') + 1 : name, RUN_HOSTS_PORT);
    fputs(" --rendezvous", f);
    tool_put_word(f, r->options->rendezvous ? r->options->rendezvous : place);
}

/* An agent hands its arguments to a shell: cd FOLDER && exec env … tessera run --follow --nnodes … -- PROGRAM …; null:
 * no memory. */
static char *command_of(const hosts_run *r, int32_t host) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return NULL;
    fputs("cd", f);
    tool_put_word(f, r->folder);
    fputs(" && ", f);
    put_environment(f);
    tool_put_word(f, r->program);
    fprintf(f, " run --follow --nnodes %d --node-rank %d", (int)r->n, (int)host);
    put_rendezvous(f, r);
    put_ranks(f, r);
    if (r->launch->mesh) {
        fputs(" --mesh", f);
        tool_put_word(f, r->launch->mesh);
    }
    fputs(r->launch->prefix ? "" : " --no-prefix", f);
    fputs(r->launch->bind ? "" : " --bind none", f);
    fputs(" --", f);
    for (char *const *word = r->launch->argv; *word; word++)
        tool_put_word(f, *word);
    return fclose(f) == 0 ? text : NULL;
}

/* ---- agents ------------------------------------------------------------------------------------- */

static int split_agent(hosts_run *r) {
    const char *text = r->options->agent ? r->options->agent : default_agent;
    char *rest = NULL;
    if ((size_t)snprintf(r->agent, sizeof r->agent, "%s", text) >= sizeof r->agent)
        return -1;
    for (char *word = strtok_r(r->agent, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest)) {
        if (r->n_words == AGENT_WORDS)
            return -1;
        r->words[r->n_words++] = word;
    }
    return r->n_words ? 0 : -1;
}

static int make_agents(hosts_run *r) {
    const size_t words = AGENT_WORDS + 3;
    r->agents = calloc((size_t)r->n, sizeof *r->agents);
    r->lists = calloc((size_t)r->n * words, sizeof *r->lists);
    for (int32_t i = 0; r->agents && r->lists && i < r->n; i++) {
        char **argv = r->lists + (size_t)i * words;
        memcpy(argv, r->words, (size_t)r->n_words * sizeof *argv);
        argv[r->n_words] = r->options->hosts.all[i].name;
        argv[r->n_words + 1] = command_of(r, i);
        r->agents[i] = (launch_agent){ r->options->hosts.all[i].name, argv };
        if (!argv[r->n_words + 1])
            return -1;
    }
    return r->agents && r->lists ? 0 : -1;
}

static void free_agents(hosts_run *r) {
    for (int32_t i = 0; r->lists && i < r->n; i++)
        free(r->lists[(size_t)i * (AGENT_WORDS + 3) + (size_t)r->n_words + 1]);
    free(r->lists);
    free(r->agents);
    explicit_bzero(r->secret, sizeof r->secret);
}

/* ---- the secret --------------------------------------------------------------------------------- */

/* The launcher starts all ranks itself, so it can choose a random secret. */
static int make_secret(hosts_run *r) {
    unsigned char random[SECRET_RANDOM];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return -1;
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(r->secret + 2 * i, 3, "%02x", random[i]);
    return 0;
}

static int find_secret(hosts_run *r) {
    int code = launch_secret_read(r->secret);
    if (code || *r->secret)
        return code;
    if (make_secret(r) == 0)
        return 0;
    tool_say(SAY_ERROR, "the system gives no random bytes for a secret");
    return TOOL_CONFIG;
}

/* ---- the whole ---------------------------------------------------------------------------------- */

static int find_places(hosts_run *r) {
    ssize_t length = readlink("/proc/self/exe", r->program, sizeof r->program - 1);
    if (length > 0 && getcwd(r->folder, sizeof r->folder))
        return 0;
    tool_say(SAY_ERROR, "cannot find this program's file and folder");
    return TOOL_CONFIG;
}

static int start(hosts_run *r) {
    launch_options o = *r->launch;
    int code = find_places(r);
    if (!code)
        code = find_secret(r);
    if (code)
        return code;
    if (split_agent(r) != 0) {
        tool_say(SAY_ERROR, "--agent has no words or more than %d", AGENT_WORDS);
        return TOOL_USAGE;
    }
    if (make_agents(r) != 0) {
        tool_say(SAY_ERROR, "no memory for the commands of %d hosts", (int)r->n);
        return TOOL_MEMORY;
    }
    o.ranks = r->n;
    o.agents = r->agents;
    o.secret = r->secret;
    return launch_start_ranks(&o);
}

int run_hosts(const launch_options *launch, const run_hosts_options *options) {
    hosts_run r = { .launch = launch, .options = options, .n = options->hosts.n };
    int code = start(&r);
    free_agents(&r);
    return code;
}
