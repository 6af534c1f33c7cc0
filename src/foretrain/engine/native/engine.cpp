// The compiled engine: the same contract and arithmetic as engine/reference.py, which explains both.
// Arrays in, arrays out; the caller has checked shapes and ranges.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "fluid.hpp"
#include "places.hpp"

namespace nb = nanobind;

namespace foretrain {
namespace {

template <typename T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Square = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

struct Times {
    double* start;
    double* end;
    Index* waited_for;
};

// What a task has yet to learn before it starts, side by side in one cache line.
struct Pending {
    double start = 0.0;
    Index waited_for = -1;
    Index missing = 0;
};

// Kept by each thread from call to call: fresh pages from the system would cost as much as the run.
struct Scratch {
    std::vector<Pending> pending;
    std::vector<Index> next;
    std::vector<Index> ready;
};

// Either a flow's data or the fixed work of an exposed task begins (slot -1), or what is in that
// slot of Fluid or of Places ends.
struct Event {
    double time;
    Index task;
    Index slot;
};

struct Later {
    bool operator()(const Event& a, const Event& b) const {
        return a.time != b.time ? a.time > b.time : a.task > b.task;
    }
};

// The hot loop: settles tasks whose times follow from those before them. A plain bundle of pointers,
// copied while in use, so that the compiler need not fear that a store changes one of them.
struct Settling {
    Graph graph;
    Times times;
    // the task behind, for each stream a task occupies (-1 if none); aligned with graph.stream_ids
    const Index* next;
    Pending* pending;
    // whether a task's work depends on what else is at work on its places; null if none does
    const std::uint8_t* exposed;
    // Every task passes through once, first in first out: neighbours in this queue do not depend on
    // each other, so the processor works on several at a time.
    Index* ready;
    Index freed;
    Index settled;

    void finish(Index task, double end) {
        times.end[task] = end;
        for (Index at = graph.succ_ptr[task]; at < graph.succ_ptr[task + 1]; ++at) {
            release(graph.succ[at], task, end);
        }
        for (Index at = graph.stream_ptr[task]; at < graph.stream_ptr[task + 1]; ++at) {
            if (next[at] >= 0) release(next[at], task, end);
        }
    }

    // Written without branches: which of two ends comes last is a coin toss to a branch predictor.
    // Times are never negative, so as bits they are ordered like whole numbers.
    void release(Index waiting, Index task, double end) {
        Pending& known = pending[waiting];
        std::int64_t ending, start;
        std::memcpy(&ending, &end, sizeof end);
        std::memcpy(&start, &known.start, sizeof start);
        // -1 as unsigned is the largest index, so the first end always takes its place
        const bool smaller =
            static_cast<std::uint32_t>(task) < static_cast<std::uint32_t>(known.waited_for);
        const std::int64_t decides = -static_cast<std::int64_t>(ending + smaller > start);
        start ^= (start ^ ending) & decides;
        std::memcpy(&known.start, &start, sizeof start);
        known.waited_for ^= (known.waited_for ^ task) & static_cast<Index>(decides);
        ready[freed] = waiting;
        freed += --known.missing == 0;
    }
};

// Lets Ctrl-C end a long run. Python notes a signal at once but acts on it only when asked, by a
// thread that holds the interpreter's lock: taking it is dear, so the clock is read after a stretch of
// work, and the lock is taken at most every tenth of a second.
class Patience {
public:
    // `work` is in units of some ten nanoseconds.
    void spend(std::size_t work) {
        if ((spent_ += work) < kStretch) return;
        spent_ = 0;
        check();
    }

private:
    void check() {
        const Clock::time_point now = Clock::now();
        if (now < next_) return;
        next_ = now + kPeriod;
        nb::gil_scoped_acquire locked;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }

    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::milliseconds kPeriod{100};
    static constexpr std::size_t kStretch = 1 << 16;
    std::size_t spent_ = 0;
    Clock::time_point next_ = Clock::now() + kPeriod;
};

class Simulation {
public:
    Simulation(const Graph& graph, const Times& times, Fluid& fluid, Places& places,
               Scratch& scratch)
        : fluid_(fluid), places_(places) {
        std::fill_n(times.end, graph.tasks, std::numeric_limits<double>::quiet_NaN());
        scratch.pending.assign(graph.tasks, Pending{});
        scratch.next.resize(graph.stream_ptr[graph.tasks]);
        scratch.ready.resize(graph.tasks + 1);
        count_waits(graph, scratch);
        settling_ = {graph, times, scratch.next.data(), scratch.pending.data(),
                     places.exposed(), scratch.ready.data(), 0, 0};
    }

    void run() {
        for (Index task = 0; task < settling_.graph.tasks; ++task) {
            if (settling_.pending[task].missing == 0) settling_.ready[settling_.freed++] = task;
        }
        begin();
        while (!events_.empty()) advance();
    }

private:
    static constexpr Index kUnwatched = 1 << 16;  // tasks settled between two looks at the clock

    static void count_waits(const Graph& graph, Scratch& scratch) {
        std::vector<Index> behind(static_cast<std::size_t>(graph.streams), -1);
        for (Index task = graph.tasks - 1; task >= 0; --task) {
            for (Index at = graph.stream_ptr[task]; at < graph.stream_ptr[task + 1]; ++at) {
                Index& last = behind[graph.stream_ids[at]];
                const Index next = last == task ? -1 : last;
                if (next >= 0) scratch.pending[next].missing += 1;
                scratch.next[at] = next;
                last = task;
            }
        }
        const Index edges = graph.succ_ptr[graph.tasks];
        for (Index edge = 0; edge < edges; ++edge) scratch.pending[graph.succ[edge]].missing += 1;
    }

    // Settles every task whose times are now known; those that need the clock go to the queue.
    void begin() {
        Settling at = settling_;
        while (at.settled < at.freed) {
            if (at.settled % kUnwatched == kUnwatched - 1) patience_.spend(kUnwatched);
            const Index task = at.ready[at.settled++];
            const Pending& known = at.pending[task];
            at.times.start[task] = known.start;
            at.times.waited_for[task] = known.waited_for;
            const double settled = known.start + at.graph.duration[task];
            if (at.graph.volume[task] > 0.0) {
                push({settled, task, -1});
            } else if (at.exposed && at.exposed[task] && settled > known.start) {
                if (known.start == now_) {
                    places_.enter(task, -1);  // no need to queue for the present
                } else {
                    push({known.start, task, -1});
                }
            } else {
                at.finish(task, settled);
            }
        }
        settling_ = at;
    }

    // Takes all events of the earliest time, then slows what interferes and shares bandwidth anew.
    void advance() {
        const double now = now_ = events_.front().time;
        while (!events_.empty() && events_.front().time == now) {
            const Event event = events_.front();
            std::pop_heap(events_.begin(), events_.end(), Later{});
            events_.pop_back();
            patience_.spend(8 + fluid_.slots());  // a flow that comes or goes concerns all others
            if (event.slot < 0) {
                move(event.task);
            } else if (ends(event)) {
                settling_.finish(event.task, now);
                begin();
            }
        }
        const auto announce = [this](double time, Index task, Index slot) {
            push({time, task, slot});
        };
        if (settling_.exposed) places_.rate(now, announce);
        fluid_.share(now, announce);
    }

    void move(Index task) {
        const Graph& graph = settling_.graph;
        Index flow = -1;
        if (graph.volume[task] > 0.0) {
            flow = fluid_.add(task, graph.route[task], graph.volume[task]);
        }
        if (is_exposed(task)) places_.enter(task, flow);
    }

    // Takes away what has ended; false if the event is out of date.
    bool ends(const Event& event) {
        if (settling_.graph.volume[event.task] > 0.0) {
            if (!fluid_.ends(event.slot, event.task, event.time)) return false;
            fluid_.remove(event.slot);
        } else if (!places_.ends(event.slot, event.task, event.time)) {
            return false;
        }
        if (is_exposed(event.task)) places_.leave(event.task);
        return true;
    }

    bool is_exposed(Index task) const { return settling_.exposed && settling_.exposed[task]; }

    void push(const Event& event) {
        events_.push_back(event);
        std::push_heap(events_.begin(), events_.end(), Later{});
    }

    Fluid& fluid_;
    Places& places_;
    Settling settling_;
    std::vector<Event> events_;
    Patience patience_;
    double now_ = -1.0;  // the time whose events are being taken
};

void simulate(In<double> duration, In<double> volume, In<Index> route, In<Index> stream_ptr,
              In<Index> stream_ids, In<Index> succ_ptr, In<Index> succ, In<Index> route_ptr,
              In<Index> route_link, In<double> route_weight, In<double> route_cap,
              In<double> capacity, Index streams, std::optional<In<Index>> stream_place,
              std::optional<In<std::int8_t>> activity, std::optional<In<double>> sensitivity,
              std::optional<Square> slowdown, Out<double> start, Out<double> end,
              Out<Index> waited_for) {
    const Graph graph{duration.data(),   volume.data(),   route.data(),
                      stream_ptr.data(), stream_ids.data(), succ_ptr.data(),
                      succ.data(),       static_cast<Index>(duration.shape(0)), streams};
    const Times times{start.data(), end.data(), waited_for.data()};
    Interference interference;
    if (activity) {
        interference = {stream_place->data(), activity->data(),
                        sensitivity ? sensitivity->data() : nullptr, slowdown->data(),
                        static_cast<Index>(slowdown->shape(0))};
    }
    nb::gil_scoped_release unlocked;
    const Routes routes(route_ptr.data(), route_link.data(), route_weight.data(), route_cap.data(),
                        route_cap.shape(0));
    Fluid fluid(routes, capacity.data(), capacity.shape(0));
    Places places(graph, interference, fluid);
    static thread_local Scratch scratch;
    Simulation(graph, times, fluid, places, scratch).run();
}

void max_min(In<Index> route_ptr, In<Index> route_link, In<double> route_weight,
             In<double> route_cap, In<double> capacity, Out<double> rates) {
    nb::gil_scoped_release unlocked;
    const Routes routes(route_ptr.data(), route_link.data(), route_weight.data(), route_cap.data(),
                        route_cap.shape(0));
    Fluid fluid(routes, capacity.data(), capacity.shape(0));
    for (Index route = 0; route < routes.count; ++route) fluid.add(route, route, 1.0);
    fluid.rate_all(rates.data());
}

}  // namespace
}  // namespace foretrain

NB_MODULE(_native, m) {
    m.doc() = "The compiled engine: same contract as foretrain.engine.reference.";
    using namespace nanobind::literals;
    m.def("simulate", &foretrain::simulate, "duration"_a, "volume"_a, "route"_a, "stream_ptr"_a,
          "stream_ids"_a, "succ_ptr"_a, "succ"_a, "route_ptr"_a, "route_link"_a, "route_weight"_a,
          "route_cap"_a, "capacity"_a, "streams"_a, "stream_place"_a.none(), "activity"_a.none(),
          "sensitivity"_a.none(), "slowdown"_a.none(), "start"_a, "end"_a, "waited_for"_a);
    m.def("max_min", &foretrain::max_min);
}
