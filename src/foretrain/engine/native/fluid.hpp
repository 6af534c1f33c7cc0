// Max-min fair sharing of links among flows. The same arithmetic, operation by operation, as
// engine/fluid.py, which states and explains it; results are equal to the last bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace foretrain {

using Index = std::int32_t;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1.0 + 1e-12;

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
    const Hop* begin(Index route) const { return hops.data() + ptr[route]; }
    const Hop* end(Index route) const { return hops.data() + ptr[route + 1]; }
};

// The flows under way, each in a slot that is used again once the flow has ended.
//
// Only links that several flows cross take part in the filling. A link with a single flow bounds it as
// the flow's own cap does, and by the same quotient, so the outcome is the same to the last bit.
class Fluid {
public:
    Fluid(const Routes& routes, const double* capacity, std::size_t links)
        : routes_(routes), capacity_(capacity), links_(links) {}

    void add(Index task, Index route, double volume) {
        const Index slot = free_slot();
        slots_[slot] = Slot{volume, 0.0, 0.0, kInfinity, 0.0, 0.0, task, route, false};
        seeds_.push_back(slot);
        const Key key = key_of(task, slot);
        for (const Hop* hop = routes_.begin(route); hop != routes_.end(route); ++hop) {
            Link& link = links_[hop->link];
            const auto at = std::lower_bound(link.flows.begin(), link.flows.end(), key);
            link.weights.insert(link.weights.begin() + (at - link.flows.begin()), hop->weight);
            link.flows.insert(at, key);
            add_up(hop->link);
        }
    }

    void remove(Index slot) {
        const Key key = key_of(slots_[slot].task, slot);
        const Index route = slots_[slot].route;
        for (const Hop* hop = routes_.begin(route); hop != routes_.end(route); ++hop) {
            Link& link = links_[hop->link];
            const auto at = std::lower_bound(link.flows.begin(), link.flows.end(), key);
            link.weights.erase(link.weights.begin() + (at - link.flows.begin()));
            link.flows.erase(at);
            add_up(hop->link);
            freed_.push_back(hop->link);
        }
        slots_[slot].task = -1;
        free_.push_back(slot);
    }

    // False if this was a former finish of a flow rated anew since, or of one already gone.
    bool ends(Index slot, Index task, double now) const {
        return slots_[slot].task == task && slots_[slot].finish == now;
    }

    // Rates anew whatever changed; calls announce(finish, task, slot) for the next flows to end.
    template <typename Announce>
    void share(double now, Announce&& announce) {
        ++epoch_;
        for (Index slot : seeds_) {
            if (seen_[slot] != epoch_) rate_component(slot, now, announce);
        }
        for (Index link : freed_) {
            // one flow leads to all others on the link
            if (links_[link].users == 0) continue;
            const Index slot = slot_of(links_[link].flows.front());
            if (seen_[slot] != epoch_) rate_component(slot, now, announce);
        }
        seeds_.clear();
        freed_.clear();
    }

    // Rates all flows as one component; flow number i must be task i.
    void rate_all(double* rates) {
        ++epoch_;
        shared_.clear();
        share_.clear();
        component_.clear();
        for (Index slot = 0; slot < static_cast<Index>(slots_.size()); ++slot) {
            component_.push_back(slot);
            bound_by_own_links(slot, [](const Link&) {});
        }
        fill();
        for (const Slot& slot : slots_) rates[slot.task] = slot.level;
    }

private:
    struct Slot {
        double remaining;
        double rate;
        double updated;
        double finish;
        double bound;  // what limits the flow by itself; infinite once it is frozen
        double level;  // where it froze
        Index task;
        Index route;
        bool announced;
    };

    struct Link {
        Index users = 0;
        std::uint32_t seen = 0;
        double share = 0.0;  // capacity / load
        double load = 0.0;   // sum of the weights, in task order
        Index local = -1;    // its place in shared_
        std::vector<Key> flows;  // in task order
        std::vector<double> weights;
    };

    // A link of the component that several flows cross, while the rates rise.
    struct Shared {
        double left;
        double load;
        Index users;
        Index link;
    };

    Index free_slot() {
        if (free_.empty()) {
            slots_.emplace_back();
            seen_.push_back(0);
            frozen_.push_back(0);
            return static_cast<Index>(slots_.size()) - 1;
        }
        const Index slot = free_.back();
        free_.pop_back();
        return slot;
    }

    void add_up(Index id) {
        Link& link = links_[id];
        link.users = static_cast<Index>(link.flows.size());
        link.load = 0.0;
        for (double weight : link.weights) link.load += weight;
        link.share = capacity_[id] / link.load;
    }

    template <typename Announce>
    void rate_component(Index seed, double now, Announce& announce) {
        collect(seed);
        fill();
        double first = kInfinity;
        for (Index slot : component_) first = std::min(first, rerate(slots_[slot], now));
        for (Index index : component_) {
            Slot& slot = slots_[index];
            if (slot.finish == first && !slot.announced) {
                slot.announced = true;
                announce(first, slot.task, index);
            }
        }
    }

    static double rerate(Slot& slot, double now) {
        if (slot.level != slot.rate) {
            slot.remaining = std::max(0.0, slot.remaining - slot.rate * (now - slot.updated));
            slot.updated = now;
            slot.rate = slot.level;
            slot.finish = now + slot.remaining / slot.rate;
            slot.announced = false;
        }
        return slot.finish;
    }

    // Fills component_ with every slot connected with the seed, shared_ with their common links.
    void collect(Index seed) {
        shared_.clear();
        share_.clear();
        component_.resize(slots_.size() + 1);
        component_[0] = seed;
        seen_[seed] = epoch_;
        std::size_t found = 1;
        for (std::size_t next = 0; next < found; ++next) {
            bound_by_own_links(component_[next], [this, &found](const Link& link) {
                for (Key key : link.flows) {
                    const Index slot = slot_of(key);
                    component_[found] = slot;
                    found += seen_[slot] != epoch_;
                    seen_[slot] = epoch_;
                }
            });
        }
        component_.resize(found);
    }

    // Sets a flow's bound, and calls on_shared(link) for each shared link not met before.
    template <typename OnShared>
    void bound_by_own_links(Index slot, OnShared&& on_shared) {
        const Index route = slots_[slot].route;
        double bound = routes_.cap[route];
        for (const Hop* hop = routes_.begin(route); hop != routes_.end(route); ++hop) {
            Link& link = links_[hop->link];
            if (link.users == 1) {
                bound = std::min(bound, link.share);
            } else if (link.seen != epoch_) {
                link.seen = epoch_;
                link.local = static_cast<Index>(shared_.size());
                shared_.push_back({capacity_[hop->link], link.load, link.users, hop->link});
                share_.push_back(link.share);
                on_shared(link);
            }
        }
        slots_[slot].bound = bound;
    }

    // Progressive filling: sets the level of each flow of the component.
    void fill() {
        chosen_.resize(component_.size() + 1);
        std::size_t rising = component_.size();
        double level = 0.0;
        // No open flow is bounded below this. Bounds only leave, so it may lag but never overshoots,
        // and need not be looked for again before the level comes up to it.
        double least_bound = lowest_bound();
        while (rising > 0) {
            const double least_share = lowest_share();
            if (std::max(level, least_share) * kTolerance >= least_bound) {
                least_bound = lowest_bound();
            }
            level = std::max(level, std::min(least_share, least_bound));
            const std::size_t taken = choose(level * kTolerance, least_bound);
            for (std::size_t i = 0; i < taken; ++i) freeze(slot_of(chosen_[i]), level);
            rising -= taken;
        }
    }

    double lowest_bound() const {
        double lowest = kInfinity;
        for (Index slot : component_) lowest = std::min(lowest, slots_[slot].bound);
        return lowest;
    }

    // Four running minima, so that each comparison need not wait for the one before.
    double lowest_share() const {
        double a = kInfinity, b = kInfinity, c = kInfinity, d = kInfinity;
        const double* at = share_.data();
        const double* const end = at + share_.size();
        for (; end - at >= 4; at += 4) {
            a = std::min(a, at[0]);
            b = std::min(b, at[1]);
            c = std::min(c, at[2]);
            d = std::min(d, at[3]);
        }
        for (; at != end; ++at) a = std::min(a, *at);
        return std::min(std::min(a, b), std::min(c, d));
    }

    // Puts the flows that rise no further than this limit into chosen_, in task order.
    std::size_t choose(double limit, double least_bound) {
        std::size_t taken = 0;
        const auto take = [this, &taken](Key key) {
            std::uint32_t& frozen = frozen_[slot_of(key)];
            chosen_[taken] = key;
            taken += frozen != epoch_;
            frozen = epoch_;
        };
        for (std::size_t id = 0; id < share_.size();) {
            if (shared_[id].users == 0) {
                drop_shared(id);  // all its flows are frozen: later rounds need not pass it again
                continue;
            }
            if (share_[id] <= limit) {
                for (Key key : links_[shared_[id].link].flows) take(key);
            }
            ++id;
        }
        if (least_bound <= limit) {
            for (Index slot : component_) {
                if (slots_[slot].bound <= limit) take(key_of(slots_[slot].task, slot));
            }
        }
        std::sort(chosen_.begin(), chosen_.begin() + static_cast<std::ptrdiff_t>(taken));
        return taken;
    }

    // The order of shared_ does not matter: minima and the sorted choice are the same in any order.
    void drop_shared(std::size_t id) {
        shared_[id] = shared_.back();
        share_[id] = share_.back();
        links_[shared_[id].link].local = static_cast<Index>(id);
        shared_.pop_back();
        share_.pop_back();
    }

    void freeze(Index index, double level) {
        Slot& slot = slots_[index];
        slot.level = level;
        slot.bound = kInfinity;
        for (const Hop* hop = routes_.begin(slot.route); hop != routes_.end(slot.route); ++hop) {
            const Link& link = links_[hop->link];
            if (link.users == 1) continue;
            Shared& shared = shared_[link.local];
            shared.left -= hop->weight * level;
            shared.load -= hop->weight;
            shared.users -= 1;
            const double share = shared.load > 0.0 ? shared.left / shared.load : 0.0;
            share_[link.local] = shared.users > 0 ? share : kInfinity;
        }
    }

    const Routes& routes_;
    const double* capacity_;
    std::vector<Link> links_;
    std::vector<Slot> slots_;
    std::vector<Index> free_;
    std::vector<Index> seeds_;  // slots filled since the last call of share
    std::vector<Index> freed_;  // links left since then
    std::uint32_t epoch_ = 0;
    std::vector<std::uint32_t> seen_;    // by slot: the last epoch that came by
    std::vector<std::uint32_t> frozen_;  // by slot: the last epoch it froze in
    std::vector<Index> component_;
    std::vector<Shared> shared_;
    std::vector<double> share_;  // of each in shared_; infinite once all its flows are frozen
    std::vector<Key> chosen_;
};

}  // namespace foretrain
