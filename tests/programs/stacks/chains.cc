// Known call chains in C++: chains-cc FILE [SECONDS [SEED]]; see truth.h.
#include "truth.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "library.h"

namespace chains {

// ---- leaves ----

FRAME void leaf(truth *t)
{
	spin(t);
}
#define LEAF "chains::leaf", SPIN
#define STD "*std"

extern "C" FRAME void leaf_of_c(void *t)
{
	leaf(static_cast<truth *>(t));
	AFTER();
}

// ---- calls ----

struct Base {
	virtual ~Base() = default;
	virtual void work_on(truth *t, int n) = 0;
};

struct Second {
	virtual ~Second() = default;
	virtual void other(truth *t) = 0;
};

struct Derived : Base, Second {
	FRAME void work_on(truth *t, int n) override
	{
		if (n > 1)
			next->work_on(t, n - 1);
		else
			leaf(t);
		AFTER();
	}

	// Called through a thunk, which jumps.
	FRAME void other(truth *t) override
	{
		leaf(t);
		AFTER();
	}

	Base *next = this;
};

static std::unique_ptr<Derived> object = std::make_unique<Derived>();
static Base *volatile base = object.get();
static Second *volatile second = object.get();

FRAME void virtual_calls(truth *t)
{
	int n = 1 + truth_below(12);

	CHAIN(t, "chains::virtual_calls");
	calls(t, "chains::Derived::work_on", n);
	CHAIN(t, LEAF);
	base->work_on(t, n);
	AFTER();
}

FRAME void thunk(truth *t)
{
	CHAIN(t, "chains::thunk", "chains::Derived::other", LEAF);
	second->other(t);
	AFTER();
}

FRAME void member_pointer(truth *t)
{
	void (Base::*volatile member)(truth *, int) = &Base::work_on;

	CHAIN(t, "chains::member_pointer", "chains::Derived::work_on", LEAF);
	(base->*member)(t, 1);
	AFTER();
}

FRAME void call_function(truth *t, const std::function<void(truth *)> &f)
{
	f(t);
	AFTER();
}

FRAME void function_object(truth *t)
{
	volatile int kept = 3;
	// What std::function makes in between may be inlined or not.
	CHAIN(t, "chains::function_object", "chains::call_function", STD, "chains::function_object::{lambda}::operator()", LEAF);
	call_function(t, [&](truth *inside) {
		leaf(inside);
		AFTER();
		kept = kept + 1;
	});
	AFTER();
}

template <typename F> FRAME void apply(truth *t, F f, int n)
{
	if (n > 1)
		apply(t, f, n - 1);
	else
		f(t);
	AFTER();
}

FRAME void templates(truth *t)
{
	int n = 1 + truth_below(8);
	auto f = [](truth *inside) __attribute__((noinline)) {
		leaf(inside);
		AFTER();
	};

	CHAIN(t, "chains::templates");
	calls(t, "chains::apply", n);
	// The conversion to a pointer is not used, so the operator itself is called.
	CHAIN(t, "chains::templates::{lambda}::operator()", LEAF);
	apply(t, f, n);
	AFTER();
}

static truth *compared;

FRAME bool less(int a, int b)
{
	truth *t = compared;

	compared = nullptr;
	if (t)
		leaf(t);
	AFTER();
	return a < b;
}

FRAME void sort(truth *t)
{
	std::vector<int> numbers(200);

	for (int &n : numbers)
		n = truth_below(1000);
	CHAIN(t, "chains::sort", "+std", "chains::less", LEAF);
	compared = t;
	std::sort(numbers.begin(), numbers.end(), less);
	AFTER();
}

struct Key {
	int value;
	FRAME bool operator<(const Key &other) const
	{
		return less(value, other.value);
	}
};

// A tail call: the operator is gone.
FRAME void in_a_map(truth *t)
{
	std::map<Key, int> map;

	map[Key{ 1 }] = 1;
	CHAIN(t, "chains::in_a_map", STD, "chains::less", LEAF);
	compared = t;
	map[Key{ 2 }] = 2;
	AFTER();
}

struct Made {
	FRAME explicit Made(truth *t)
	{
		leaf(t);
		AFTER();
	}
};

FRAME void constructor(truth *t)
{
	CHAIN(t, "chains::constructor", "chains::Made::Made", LEAF);
	Made made(t);
	AFTER();
}

FRAME void library(truth *t)
{
	int n = 1 + truth_below(10);

	CHAIN(t, "chains::library", "near_enter");
	calls(t, "near_inside", n);
	CHAIN(t, "leaf_of_c", LEAF);
	near_enter(leaf_of_c, t, n);
	AFTER();
}

// ---- exceptions ----

FRAME int thrower(int n)
{
	std::string kept(100, 'x');

	int below = n > 1 ? thrower(n - 1) : throw std::runtime_error("known");
	AFTER();
	return below + kept.size();
}

FRAME void catches(truth *t)
{
	try {
		thrower(5);
	} catch (const std::exception &) {
		leaf(t);
		AFTER();
	}
	AFTER();
}

FRAME void in_catch(truth *t)
{
	CHAIN(t, "chains::in_catch", "chains::catches", LEAF);
	catches(t);
	AFTER();
}

FRAME void catches_again(truth *t)
{
	try {
		try {
			thrower(2);
		} catch (...) {
			thrower(3);
		}
	} catch (const std::runtime_error &) {
		try {
			throw;
		} catch (const std::exception &) {
			leaf(t);
			AFTER();
		}
	}
	AFTER();
}

FRAME void in_nested_catch(truth *t)
{
	CHAIN(t, "chains::in_nested_catch", "chains::catches_again", LEAF);
	catches_again(t);
	AFTER();
}

struct Guard {
	truth *t;
	FRAME ~Guard()
	{
		leaf(t);
		AFTER();
	}
};

FRAME int guarded(truth *t, int n)
{
	Guard guard{ t };

	return thrower(n) + 1;
}

FRAME int above_guarded(truth *t, int n)
{
	std::string kept(100, 'y');

	return guarded(t, n) + kept.size();
}

// The frames of thrower are gone, those of above_guarded not yet.
FRAME void in_destructor(truth *t)
{
	CHAIN(t, "chains::in_destructor", "chains::above_guarded", "chains::guarded", "chains::Guard::~Guard", LEAF);
	try {
		above_guarded(t, 4);
	} catch (const std::exception &) {
		AFTER();
	}
	AFTER();
}

FRAME void throwing_leaf(truth *t)
{
	truth_start(t);
	uint64_t until = t->start + t->length;
	do {
		try {
			thrower(3);
		} catch (const std::exception &) {
			AFTER();
		}
	} while (now_ns() < until);
	truth_end(t);
}

// At any instruction of the throwing and of the runtime that unwinds.
FRAME void throwing(truth *t)
{
	CHAIN(t, "chains::throwing", "chains::throwing_leaf", "*std", "chains::thrower?", "*std", "chains::thrower?", "*std", "chains::thrower?",
	      "*std|libstdc++.so|libgcc_s.so|libc.so|ld-linux|plt", "truth_start?", "truth_end?", "cpu_ns?", CLOCKS);
	throwing_leaf(t);
	AFTER();
}

// ---- threads and waits ----

FRAME void thread_main(truth *t)
{
	Derived local;

	local.work_on(t, 3);
	AFTER();
}

FRAME void thread(truth *t)
{
	CHAIN(t, "chains::thread_main", "chains::Derived::work_on", "chains::Derived::work_on", "chains::Derived::work_on", LEAF);
	std::thread other(thread_main, t);
	other.join();
	AFTER();
}

FRAME void async_main(truth *t)
{
	leaf(t);
	AFTER();
}

FRAME void async(truth *t)
{
	CHAIN(t, "chains::async_main", LEAF);
	std::async(std::launch::async, async_main, t).get();
	AFTER();
}

FRAME void sleep_leaf(truth *t)
{
	truth_start(t);
	std::this_thread::sleep_for(std::chrono::nanoseconds(t->length));
	truth_end(t);
}

FRAME void sleeping(truth *t)
{
	t->off = 1;
	CHAIN(t, "chains::sleeping", "chains::sleep_leaf", STD, WAIT);
	sleep_leaf(t);
	AFTER();
}

FRAME void condition_leaf(truth *t)
{
	static std::mutex mutex;
	static std::condition_variable condition;
	std::unique_lock<std::mutex> lock(mutex);

	truth_start(t);
	condition.wait_for(lock, std::chrono::nanoseconds(t->length), [] { return false; });
	truth_end(t);
}

FRAME void condition(truth *t)
{
	t->off = 1;
	CHAIN(t, "chains::condition", "chains::condition_leaf", "*std|plt|libstdc++.so", WAIT);
	condition_leaf(t);
	AFTER();
}

// ---- phases ----

struct Phase {
	const char *name;
	void (*run)(truth *);
	bool own_root = false; // the chain does not begin with main
};

const Phase phases[] = {
	{ "virtual", virtual_calls },
	{ "thunk", thunk },
	{ "member pointer", member_pointer },
	{ "std::function", function_object },
	{ "templates", templates },
	{ "std::sort", sort },
	{ "std::map", in_a_map },
	{ "constructor", constructor },
	{ "library", library },
	{ "in catch", in_catch },
	{ "in nested catch", in_nested_catch },
	{ "in destructor", in_destructor },
	{ "throwing", throwing },
	{ "std::thread", thread, true },
	{ "std::async", async, true },
	{ "sleep_for", sleeping },
	{ "wait_for", condition },
};

FRAME void descend(truth *t, void (*run)(truth *), int n)
{
	std::string kept(n, 'x');

	if (n > 1)
		descend(t, run, n - 1);
	else
		run(t);
	AFTER();
}

FRAME void round_of_all()
{
	std::vector<const Phase *> order;

	for (const Phase &phase : phases)
		order.insert(order.begin() + truth_below(order.size() + 1), &phase);
	for (const Phase *phase : order) {
		truth *t = truth_new(phase->name);
		int n = 1 + truth_below(20);

		if (!phase->own_root) {
			CHAIN(t, "main", "chains::round_of_all");
			calls(t, "chains::descend", n);
		}
		descend(t, phase->run, n);
	}
}

} // namespace chains

int main(int argc, char **argv)
{
	double seconds = argc > 2 ? atof(argv[2]) : 2;

	if (argc < 2) {
		fprintf(stderr, "usage: chains-cc FILE [SECONDS [SEED]]\n");
		return 2;
	}
	truth_init(argc > 3 ? atoi(argv[3]) : 1);
	uint64_t until = now_ns() + static_cast<uint64_t>(seconds * 1e9);
	do
		chains::round_of_all();
	while (now_ns() < until);
	return truth_write(argv[1]);
}
