// Max-min fair sharing of links among flows. The same arithmetic, operation by operation, as
// engine/fluid.py, which states and explains it; results are equal to the last bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

namespace foretrain {

using Index = std::int32_t;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1.0 + 1e-12;
constexpr double kLeastLoad = 1e-12;

// A flow as (task, slot) in one number: sorts by task, leads to the slot.
using Key = std::uint64_t;
inline Key key_of(Index task, Index slot) {
    return static_cast<Key>(task) << 32 | static_cast<std::uint32_t>(slot);
}
inline Index slot_of(Key key) { return static_cast<Index>(key & 0xffffffffu); }

struct Hop {
    Index link;
    double weight;
};

// The links each route crosses, the load it puts on them per unit of rate, and its own cap.
struct Routes {
    std::vector<Hop> hops;
    const Index* ptr;
    const double* cap;
    Index count;

    Routes(const Index* route_ptr, const Index* link, const double* weight, const double* route_cap,
           std::size_t routes)
        : ptr(route_ptr), cap(route_cap), count(static_cast<Index>(routes)) {
        hops.reserve(static_cast<std::size_t>(ptr[count]));
        for (Index at = 0; at < ptr[count]; ++at) hops.push_back({link[at], weight[at]});
    }
    struct Range {
        const Hop* first;
        const Hop* last;
        const Hop* begin() const { return first; }
        const Hop* end() const { return last; }
    };
    Range of(Index route) const { return {hops.data() + ptr[route], hops.data() + ptr[route + 1]}; }
};

// The flows under way, each in a slot that is used again once the flow has ended.
//
// A change is followed only as far as it reaches, in a *pass* over the rising levels. Levels rise
// strictly, and the state of a link at a level follows from its own flows below it (see fluid.py).
// So a link whose flows are as before fills at the level it did before, and what it held stays.
// Links that a changed flow crosses are *disturbed*: filled anew. A flow held by a disturbed link
// that does not fill at its old level rises again and disturbs its other links; so does one that a
// disturbed link stops earlier. By induction the outcome is that of filling all, to the last bit.
//
// A pass need not begin at zero. A link can fill only from its first share on, and with flows gone
// each of its shares is at least what it was, since every operation in it rounds monotonically. So
// nothing differs below the levels of flows removed and the first shares and caps of those added.
class Fluid {
public:
    Fluid(const Routes& routes, const double* capacity, std::size_t links)
        : routes_(routes), capacity_(capacity), links_(links) {}

    // Most flows that ever moved at once.
    std::size_t slots() const { return slots_.size(); }

    // Returns the slot of the flow.
    Index add(Index task, Index route, double volume) {
        const Index index = free_slot();
        Slot& slot = slots_[index];
        slot = Slot{volume, task, routes_.cap[route], routes_.of(route)};
        seeds_.push_back(index);
        const Key key = key_of(task, index);
        for (const Hop& hop : slot.hops) {
            std::vector<Use>& uses = links_[hop.link].uses;
            uses.insert(place_of(uses, key), Use{key, hop.weight});
            add_up(hop.link);
            start_ = std::min(start_, kBelow * links_[hop.link].share);
        }
        start_ = std::min(start_, kBelow * slot.cap);
        return index;
    }

    // Lets a flow move at 1 / factor of its rate, which stays as it is, from the next share on.
    void slow(Index index, double factor) {
        if (slots_[index].factor == factor) return;
        slots_[index].factor = factor;
        slowed_.push_back(index);
    }

    void remove(Index index) {
        Slot& slot = slots_[index];
        const Key key = key_of(slot.task, index);
        for (const Hop& hop : slot.hops) {
            std::vector<Use>& uses = links_[hop.link].uses;
            uses.erase(place_of(uses, key));
            add_up(hop.link);
            freed_.push_back(hop.link);
        }
        start_ = std::min(start_, slot.level);
        slot.task = -1;
        free_.push_back(index);
    }

    // False if this was a former finish of a flow rated anew since, or of one already gone.
    bool ends(Index slot, Index task, double now) const {
        return slots_[slot].task == task && slots_[slot].finish == now;
    }

    // Rates anew whatever changed; calls announce(finish, task, slot) for each new finish.
    template <typename Announce>
    void share(double now, Announce&& announce) {
        fill();
        moved_.insert(moved_.end(), slowed_.begin(), slowed_.end());
        slowed_.clear();
        for (Index index : moved_) {
            Slot& slot = slots_[index];
            const double speed = slot.level / slot.factor;
            if (speed == slot.speed) continue;
            slot.remaining = std::max(0.0, slot.remaining - slot.speed * (now - slot.updated));
            slot.updated = now;
            slot.speed = speed;
            slot.finish = now + slot.remaining / speed;
            announce(slot.finish, slot.task, index);
        }
    }

    // The rates of all flows, by task.
    void rate_all(double* rates) {
        fill();
        for (const Slot& slot : slots_) rates[slot.task] = slot.level;
    }

private:
    using Pass = std::uint32_t;

    struct Slot {
        double remaining = 0.0;
        Index task = -1;
        double cap = kInfinity;
        Routes::Range hops{};
        double factor = 1.0;
        double speed = 0.0;
        double updated = 0.0;
        double finish = kInfinity;
        double level = kInfinity;  // where it froze; infinite while it rises
        Index held = kByCap;  // the link that stopped it
        Index stop = -1;      // its place in stops_, in the pass that watches it
        Pass watched = 0, frozen = 0;
    };

    struct Use {
        Key key;
        double weight;
    };

    using Below = std::tuple<double, Key, double>;  // level, key, weight

    struct Link {
        std::vector<Use> uses;  // in task order
        double load = 0.0;      // sum of the weights, in task order
        double least = 0.0;     // what rounding must leave of it while flows rise
        double share = 0.0;     // capacity / load
        // while disturbed:
        double left = 0.0, rest = 0.0;  // of capacity and load
        Index rising = 0, stop = -1;
        Pass disturbed = 0;
    };

    static constexpr Index kByCap = -1;
    static constexpr double kBelow = 1.0 - 1e-9;  // safely below what the tolerance may reach

    static std::vector<Use>::iterator place_of(std::vector<Use>& uses, Key key) {
        auto at = uses.begin();
        while (at != uses.end() && at->key < key) ++at;
        return at;
    }

    Index free_slot() {
        if (free_.empty()) {
            free_.push_back(static_cast<Index>(slots_.size()));
            slots_.emplace_back();
        }
        const Index slot = free_.back();
        free_.pop_back();
        return slot;
    }

    void add_up(Index id) {
        Link& link = links_[id];
        link.load = 0.0;
        for (const Use& use : link.uses) link.load += use.weight;
        link.least = link.load * kLeastLoad;
        link.share = capacity_[id] / link.load;
    }

    // One pass: sets the level of every flow that the changes since the last one reach.
    void fill() {
        ++pass_;
        stops_.clear();
        stopped_.clear();
        moved_.clear();
        for (Index slot : seeds_) raise(slot, start_);
        for (Index link : freed_) disturb(link, start_);
        seeds_.clear();
        freed_.clear();
        start_ = kInfinity;
        for (double level = next_level(); level < kInfinity; level = next_level()) {
            raise_unheld(level);
            choose(level);
            freeze(level);
        }
    }

    // The lowest level at which something happens; due_ says to whom.
    double next_level() {
        known_ = stops_.size();
        if (due_.size() < known_) due_.resize(2 * known_);
        const double* const stops = stops_.data();
        double lowest = kInfinity;
        dues_ = 0;
        for (std::size_t at = 0; at < known_; ++at) {
            if (stops[at] > lowest) continue;
            if (stops[at] < lowest) dues_ = 0;
            lowest = stops[at];
            due_[dues_++] = static_cast<Index>(at);
        }
        return lowest;
    }

    Index add_stop(double level, Index who) {
        stops_.push_back(level);
        stopped_.push_back(who);
        return static_cast<Index>(stops_.size()) - 1;
    }

    void watch(Index index) {
        Slot& slot = slots_[index];
        if (slot.watched == pass_) return;
        slot.watched = pass_;
        slot.stop = add_stop(slot.level, ~index);
    }

    // Lets a flow rise from this level on, up to its own bound: its cap or a link it has to itself.
    void raise(Index index, double level) {
        Slot& slot = slots_[index];
        slot.level = kInfinity;
        slot.held = kByCap;
        watch(index);
        moved_.push_back(index);
        double bound = slot.cap;
        for (const Hop& hop : slot.hops) {
            const Link& link = links_[hop.link];
            if (link.uses.size() > 1) {
                disturb(hop.link, level);
            } else if (link.share < bound) {
                bound = link.share;
                slot.held = hop.link;
            }
        }
        stops_[slot.stop] = bound;
    }

    // Brings a link to its state at this level and watches those of its flows that are not below.
    void disturb(Index id, double level) {
        Link& link = links_[id];
        if (link.disturbed == pass_) return;
        link.disturbed = pass_;
        link.left = capacity_[id];
        link.rest = link.load;
        link.rising = static_cast<Index>(link.uses.size());
        const double share = replay(link, level);
        link.stop = add_stop(share, id);
        for (const Use& use : link.uses) {
            const Index index = slot_of(use.key);
            const Slot& slot = slots_[index];
            if (slot.level < level) continue;
            watch(index);
            if (slot.level == level && slot.held == id && share != level) unheld_.push_back(index);
        }
    }

    // Takes off the flows that froze below this level, in the order of freezing.
    double replay(Link& link, double level) {
        below_.clear();
        for (const Use& use : link.uses) {
            const double froze = slots_[slot_of(use.key)].level;
            if (froze < level) below_.emplace_back(froze, use.key, use.weight);
        }
        std::sort(below_.begin(), below_.end());
        double share = link.share;
        for (const auto& [froze, key, weight] : below_) take_off(link, weight, froze, share);
        return share;
    }

    static void take_off(Link& link, double weight, double level, double& share) {
        link.left -= weight * level;
        link.rest -= weight;
        link.rising -= 1;
        const double least = std::max(share, level * kTolerance);
        share = std::max(least, link.left / std::max(link.rest, link.least));
        if (link.rising == 0) share = kInfinity;
    }

    // Flows that froze at this level before, but on a link that no longer fills at it, rise again.
    void raise_unheld(double level) {
        for (std::size_t i = 0; i < dues_; ++i) {
            const Index who = stopped_[due_[i]];
            if (who >= 0) continue;
            const Slot& slot = slots_[~who];
            if (slot.level != level || slot.held == kByCap) continue;
            const Link& link = links_[slot.held];
            if (link.disturbed == pass_ && stops_[link.stop] != level) unheld_.push_back(~who);
        }
        for (std::size_t i = 0; i < unheld_.size(); ++i) raise(unheld_[i], level);
        unheld_.clear();
    }

    // Fills chosen_ with the watched flows that freeze at this level.
    void choose(double level) {
        chosen_.clear();
        for (std::size_t i = 0; i < dues_; ++i) stop_at(due_[i], level);
        std::size_t news = known_, spread = 0;
        do {
            for (; news < stops_.size(); ++news) stop_at(static_cast<Index>(news), level);
            if (spread < chosen_.size()) stop_met(slots_[slot_of(chosen_[spread++])], level);
        } while (news < stops_.size() || spread < chosen_.size());
    }

    // Links that a flow freezing at this level crosses are full if they nearly are.
    void stop_met(const Slot& slot, double level) {
        for (const Hop& hop : slot.hops) {
            const Link& link = links_[hop.link];
            if (link.disturbed != pass_) continue;
            if (stops_[link.stop] <= level * kTolerance) stop_all(hop.link, level);
        }
    }

    void stop_at(Index at, double level) {
        if (stops_[at] != level) return;
        const Index who = stopped_[at];
        if (who >= 0) return stop_all(who, level);
        stop(~who, level, slots_[~who].held);
    }

    void stop_all(Index id, double level) {
        stops_[links_[id].stop] = kInfinity;
        for (const Use& use : links_[id].uses) stop(slot_of(use.key), level, id);
    }

    void stop(Index index, double level, Index held) {
        Slot& slot = slots_[index];
        if (slot.level < level || slot.frozen == pass_) return;
        slot.frozen = pass_;
        chosen_.push_back(key_of(slot.task, index));
        stops_[slot.stop] = kInfinity;
        if (slot.level == level) return;
        const bool rising = slot.level == kInfinity;
        slot.level = level;
        slot.held = held;
        if (rising) return;
        moved_.push_back(index);
        for (const Hop& hop : slot.hops) disturb(hop.link, level);
    }

    void freeze(double level) {
        std::sort(chosen_.begin(), chosen_.end());
        for (Key key : chosen_) {
            for (const Hop& hop : slots_[slot_of(key)].hops) {
                Link& link = links_[hop.link];
                if (link.disturbed == pass_) take_off(link, hop.weight, level, stops_[link.stop]);
            }
        }
    }

    const Routes& routes_;
    const double* capacity_;
    std::vector<Link> links_;
    std::vector<Slot> slots_;
    std::vector<Index> free_;
    std::vector<Index> seeds_;  // slots filled since the last pass
    std::vector<Index> freed_;  // links left since then
    std::vector<Index> slowed_;  // slots with another factor since then
    double start_ = kInfinity;  // where the next pass begins
    Pass pass_ = 0;
    std::vector<double> stops_;   // levels at which a link fills or a flow freezes
    std::vector<Index> stopped_;  // the link, or ~slot
    std::vector<Index> due_;      // the places in stops_ of the lowest level
    std::size_t dues_ = 0;        // so many of them
    std::size_t known_ = 0;       // size of stops_ when due_ was looked for
    std::vector<Index> unheld_;   // slots to rise again
    std::vector<Index> moved_;    // slots whose level may be new
    std::vector<Key> chosen_;
    std::vector<Below> below_;
};

}  // namespace foretrain
