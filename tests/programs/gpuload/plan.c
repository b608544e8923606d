/* Which injections come in which step. */
#define _GNU_SOURCE
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An injection that was asked for, and when its turns are. */
struct planned {
	const struct injection *what;
	uint64_t ns;
	int every;
	long phase;
};

#define MAX_PLANNED 64

static struct planned plan[MAX_PLANNED];
static int planned;

/* With --case: the injection of each turn, in random order. */
static const struct planned **turns;
static long turn_count, turn, next_step, steps_between;

static const struct injection *by_name(const char *name, size_t len)
{
	for (int i = 0; i < injection_count; i++)
		if (strlen(injections[i].name) == len && !memcmp(injections[i].name, name, len))
			return &injections[i];
	die("no injection '%.*s', see --help", (int)len, name);
}

static struct planned *add(const struct injection *what, double ms)
{
	struct planned *p = &plan[planned++];

	if (planned > MAX_PLANNED)
		die("too many injections");
	p->what = what;
	p->ns = ms * 1e6;
	return p;
}

void plan_inject(const char *text)
{
	size_t len = strcspn(text, ":@");
	const struct injection *what = by_name(text, len);
	const char *rest = text + len;
	double ms = what->ms;
	int every = 10;
	char *end;

	if (*rest == ':') {
		ms = strtod(rest + 1, &end);
		rest = end;
	}
	if (*rest == '@') {
		every = strtol(rest + 1, &end, 10);
		rest = end;
	}
	if (*rest || every < 1 || ms < 0)
		die("'%s' is not NAME[:MS][@N]", text);
	add(what, ms)->every = every;
}

void plan_spread(void)
{
	for (int i = 0; i < planned; i++)
		plan[i].phase = (long)(i + 1) * plan[i].every / (planned + 1);
}

static uint64_t draw(uint64_t *seed)
{
	/* splitmix64 */
	uint64_t z = (*seed += 0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

void plan_cases(const char *names, int gaps, uint64_t seed, long between)
{
	for (const char *name = names; *name;) {
		size_t len = strcspn(name, ",");
		const struct injection *what = by_name(name, len);

		add(what, what->ms);
		name += len + (name[len] == ',');
	}
	turn_count = (long)planned * gaps;
	turns = calloc(turn_count, sizeof(*turns));
	for (long i = 0; i < turn_count; i++) {
		long j = draw(&seed) % (i + 1);

		turns[i] = turns[j];
		turns[j] = &plan[i % planned];
	}
	next_step = between;
	steps_between = between;
}

const char *plan_lacks(const struct injection *what)
{
	return what->lacks ? what->lacks() : NULL;
}

void plan_prepare(struct run *run)
{
	for (int i = 0; i < planned; i++) {
		const char *lacks = plan_lacks(plan[i].what);

		if (lacks)
			die("%s: %s", plan[i].what->name, lacks);
		if (plan[i].what->prepare)
			plan[i].what->prepare(run);
	}
}

void plan_ready(struct run *run)
{
	for (int i = 0; i < planned; i++)
		if (plan[i].what->ready)
			plan[i].what->ready(run);
}

static void inject(struct run *run, const struct planned *p, long step, FILE *out)
{
	static struct truth truth;
	uint64_t start = now_ns();

	truth.cause = p->what->cause;
	truth.whole = 1;
	truth.count = 0;
	p->what->go(run, p->ns, &truth);
	if (truth.whole)
		truth_add(&truth, start, now_ns());
	if (!out)
		return;
	for (int i = 0; i < truth.count; i++)
		fprintf(out,
			"{\"case\":\"%s\",\"cause\":\"%s\",\"step\":%ld,\"start_ns\":%llu,\"end_ns\":%llu,\"ns\":%llu,\"device\":%d}\n",
			p->what->name, truth.spans[i].cause, step,
			(unsigned long long)truth.spans[i].start,
			(unsigned long long)truth.spans[i].end,
			(unsigned long long)truth.spans[i].ns, run->opt.device);
	fflush(out);
}

int plan_over(long step)
{
	return turns && turn == turn_count && step >= next_step;
}

void plan_step(struct run *run, long step, int ready, FILE *out)
{
	if (turns) {
		if (step >= next_step && ready && turn < turn_count) {
			inject(run, turns[turn++], step, out);
			next_step = step + steps_between;
		}
		return;
	}
	for (int i = 0; i < planned; i++)
		if (step % plan[i].every == plan[i].phase)
			inject(run, &plan[i], step, out);
}
