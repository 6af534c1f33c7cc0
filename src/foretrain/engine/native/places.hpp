// Interference among the tasks of a place. The same arithmetic, operation by operation, as
// engine/places.py, which states and explains it; results are equal to the last bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "fluid.hpp"

namespace foretrain {

struct Graph {
    const double* duration;
    const double* volume;
    const Index* route;
    const Index* stream_ptr;
    const Index* stream_ids;
    const Index* succ_ptr;
    const Index* succ;
    Index tasks;
    Index streams;
};

// Who slows whom; without activities nobody does.
struct Interference {
    const Index* stream_place = nullptr;
    const std::int8_t* activity = nullptr;
    const double* sensitivity = nullptr;  // all 1 if there is none
    const double* slowdown = nullptr;     // activities x activities
    Index activities = 0;
};

// The tasks at work on places, each in a slot that is used again once the task has ended.
//
// Only tasks that others on their places can slow, or that can slow such a task, are *exposed*; the
// rest have times that no rate can change and never come here. Slots hold both fixed work, whose
// finish is kept here, and flows, whose factor is handed on to `Fluid`.
class Places {
public:
    Places(const Graph& graph, const Interference& given, Fluid& fluid)
        : graph_(graph), given_(given), fluid_(fluid) {
        if (!given.activity) return;
        const Index classes = given.activities;
        slowed_by_.assign(classes, 0);
        slows_.assign(classes, 0);
        for (Index a = 1; a < classes; ++a) {
            for (Index b = 1; b < classes; ++b) {
                if (given.slowdown[a * classes + b] <= 1.0) continue;
                slowed_by_[a] |= bit(b);
                slows_[b] |= bit(a);
            }
        }
        number_places();
        expose();
    }

    // By task, or null if no task is exposed.
    const std::uint8_t* exposed() const { return any_ ? exposed_.data() : nullptr; }

    // `flow` is the slot of its data in Fluid, or -1 for fixed work.
    void enter(Index task, Index flow) {
        const Index index = free_slot();
        Slot& slot = slots_[index];
        slot = Slot{task, flow, graph_.duration[task]};
        slot_of_[task] = index;
        entered_.push_back(index);
        const Index activity = given_.activity[task];
        for (Index at = place_ptr_[task]; at < place_ptr_[task + 1]; ++at) {
            Place& place = places_[place_ids_[at]];
            if (exposed_[task] & kSlowed) place.slowed.push_back(index);
            count(place_ids_[at], activity, 1);
        }
    }

    void leave(Index task) {
        const Index index = slot_of_[task];
        const Index activity = given_.activity[task];
        for (Index at = place_ptr_[task]; at < place_ptr_[task + 1]; ++at) {
            std::vector<Index>& slowed = places_[place_ids_[at]].slowed;
            const auto found = std::find(slowed.begin(), slowed.end(), index);
            if (found != slowed.end()) {
                *found = slowed.back();
                slowed.pop_back();
            }
            count(place_ids_[at], activity, -1);
        }
        slots_[index].task = -1;
        free_.push_back(index);
    }

    // False if this was a former finish of work rated anew since, or of work already done.
    bool ends(Index slot, Index task, double now) const {
        return slots_[slot].task == task && slots_[slot].finish == now;
    }

    // Rates anew whatever changed; calls announce(finish, task, slot) for each new finish.
    template <typename Announce>
    void rate(double now, Announce&& announce) {
        for (Index index : entered_) {
            if (slots_[index].task >= 0) slow(index, now, announce);
        }
        entered_.clear();
        for (Index id : changed_) {
            Place& place = places_[id];
            place.changed = false;
            // what ended may have been followed by its like
            if (place.busy == place.rated_busy && place.crowded == place.rated_crowded) continue;
            place.rated_busy = place.busy;
            place.rated_crowded = place.crowded;
            for (Index index : place.slowed) slow(index, now, announce);
        }
        changed_.clear();
    }

private:
    using Mask = std::uint32_t;  // one bit for each activity

    static constexpr std::uint8_t kSlows = 1, kSlowed = 2;

    struct Slot {
        Index task = -1;
        Index flow = -1;
        double remaining = 0.0;
        double factor = kInfinity;
        double updated = 0.0;
        double finish = kInfinity;
    };

    struct Place {
        Mask busy = 0, crowded = 0;  // activities with at least one, at least two tasks at work
        Mask rated_busy = 0, rated_crowded = 0;
        bool changed = false;
        std::vector<Index> slowed;  // slots
    };

    static Mask bit(Index activity) { return Mask{1} << activity; }

    double sensitivity(Index task) const {
        return given_.sensitivity ? given_.sensitivity[task] : 1.0;
    }

    // Places may have any numbers; here they are counted from zero.
    void number_places() {
        std::vector<Index> known(given_.stream_place, given_.stream_place + graph_.streams);
        std::sort(known.begin(), known.end());
        known.erase(std::unique(known.begin(), known.end()), known.end());
        known.erase(known.begin(), std::lower_bound(known.begin(), known.end(), 0));
        place_of_.resize(graph_.streams);
        for (Index stream = 0; stream < graph_.streams; ++stream) {
            const Index place = given_.stream_place[stream];
            const auto at = std::lower_bound(known.begin(), known.end(), place);
            place_of_[stream] = place < 0 ? -1 : static_cast<Index>(at - known.begin());
        }
        places_.resize(known.size());
        counts_.assign(known.size() * given_.activities, 0);
    }

    template <typename Visit>
    void each_place(Index task, Visit&& visit) const {
        for (Index at = graph_.stream_ptr[task]; at < graph_.stream_ptr[task + 1]; ++at) {
            const Index place = place_of_[graph_.stream_ids[at]];
            if (place >= 0) visit(place);
        }
    }

    // Finds the exposed tasks, and the places of each.
    void expose() {
        std::vector<Mask> present(places_.size(), 0), slowed(places_.size(), 0);
        each_active([&](Index task, Index activity) {
            each_place(task, [&](Index place) { present[place] |= bit(activity); });
        });
        each_active([&](Index task, Index activity) {
            if (!(sensitivity(task) > 0.0)) return;
            each_place(task, [&](Index place) {
                if (slowed_by_[activity] & present[place]) slowed[place] |= bit(activity);
            });
        });
        exposed_.assign(graph_.tasks, 0);
        slot_of_.assign(graph_.tasks, -1);
        place_ptr_.assign(graph_.tasks + 1, 0);
        each_active([&](Index task, Index activity) {
            const bool is_slowed = sensitivity(task) > 0.0;
            each_place(task, [&](Index place) {
                if (is_slowed && slowed_by_[activity] & present[place]) exposed_[task] |= kSlowed;
                if (slows_[activity] & slowed[place]) exposed_[task] |= kSlows;
            });
        });
        for (Index task = 0; task < graph_.tasks; ++task) {
            if (exposed_[task]) list_places(task);
            place_ptr_[task + 1] = static_cast<Index>(place_ids_.size());
        }
        any_ = !place_ids_.empty();
    }

    template <typename Visit>
    void each_active(Visit&& visit) const {
        for (Index task = 0; task < graph_.tasks; ++task) {
            if (given_.activity[task]) visit(task, static_cast<Index>(given_.activity[task]));
        }
    }

    void list_places(Index task) {
        const auto first = static_cast<std::ptrdiff_t>(place_ids_.size());
        each_place(task, [&](Index place) {
            if (std::find(place_ids_.begin() + first, place_ids_.end(), place) == place_ids_.end()) {
                place_ids_.push_back(place);
            }
        });
    }

    void count(Index id, Index activity, Index more) {
        Place& place = places_[id];
        Index& tasks = counts_[id * given_.activities + activity];
        tasks += more;
        const Mask own = bit(activity);
        place.busy = tasks > 0 ? place.busy | own : place.busy & ~own;
        place.crowded = tasks > 1 ? place.crowded | own : place.crowded & ~own;
        if (!place.changed) changed_.push_back(id);
        place.changed = true;
    }

    double factor(Index task, const Place& place) const {
        const Index activity = given_.activity[task];
        const double* const row = given_.slowdown + activity * given_.activities;
        const Mask own = bit(activity);
        const Mask others = ((place.busy & ~own) | (place.crowded & own)) & slowed_by_[activity];
        double product = 1.0;
        for (Index b = 1; others >> b; ++b) {
            if (others & bit(b)) product *= row[b];
        }
        return 1.0 + sensitivity(task) * (product - 1.0);
    }

    template <typename Announce>
    void slow(Index index, double now, Announce&& announce) {
        Slot& slot = slots_[index];
        double greatest = 1.0;
        for (Index at = place_ptr_[slot.task]; at < place_ptr_[slot.task + 1]; ++at) {
            greatest = std::max(greatest, factor(slot.task, places_[place_ids_[at]]));
        }
        if (greatest == slot.factor) return;
        if (slot.flow < 0) {
            const double progress = (now - slot.updated) / slot.factor;
            slot.remaining = std::max(0.0, slot.remaining - progress);
            slot.updated = now;
            slot.finish = now + slot.remaining * greatest;
            announce(slot.finish, slot.task, index);
        } else {
            fluid_.slow(slot.flow, greatest);
        }
        slot.factor = greatest;
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

    const Graph& graph_;
    const Interference given_;
    Fluid& fluid_;
    std::vector<Mask> slowed_by_, slows_;  // by activity: those that slow it, those it slows
    std::vector<Index> place_of_;          // by stream
    std::vector<std::uint8_t> exposed_;    // by task: whether it slows or is slowed
    std::vector<Index> place_ptr_, place_ids_;  // by task, those of exposed ones, each once
    std::vector<Index> slot_of_;                // by task
    bool any_ = false;
    std::vector<Place> places_;
    std::vector<Index> counts_;  // tasks at work, by place and activity
    std::vector<Slot> slots_;
    std::vector<Index> free_;
    std::vector<Index> entered_;  // slots, since the last rating
    std::vector<Index> changed_;  // places, since then
};

}  // namespace foretrain
