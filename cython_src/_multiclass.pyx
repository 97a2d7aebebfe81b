"""The sequential dual method for two direct multi-class SVMs (Keerthi et al., KDD 2008).

Weights W = (w_1, ..., w_k), e_i^m = 1 where m is not y_i, else 0; C_i is that of the class y_i. With -B b every row has
one more feature of value b, whose weights are the last row of W.

Crammer-Singer (Algorithm 2.1):

    min_W  sum_m w_m.w_m / 2 + sum_i C_i max_m (e_i^m - (w_{y_i} - w_m).x_i)
    max_a  sum_i a_i^{y_i} - sum_m w_m.w_m / 2,    w_m = sum_i a_i^m x_i,
           a_i^{y_i} <= C_i,  a_i^m <= 0 for m not y_i,  sum_m a_i^m = 0

Weston-Watkins (Algorithm 3.1):

    min_W  sum_m w_m.w_m / 2 + sum_i C_i sum_{m not y_i} max(0, 1 - (w_{y_i} - w_m).x_i)
    max_a  sum_i sum_{m not y_i} a_i^m - sum_m w_m.w_m / 2,    0 <= a_i^m <= C_i,
           w_m = sum_i (sum_{n not m} a_i^n where y_i = m, else -a_i^m) x_i

One step makes the dual largest in all variables of one row, exactly, A = x_i.x_i, g^m = w_m.x_i + e_i^m:

    CS  a^m = U^m - max(0, D^m - b) / A,  D^m = g^m - A (a^m - U^m),  sum_m max(0, D^m - b) = A C_i,
        U = C_i at y_i, else 0
    WW  a^m = min(C_i, max(0, t^m - s)),  t^m = a^m + (1 - (w_{y_i} - w_m).x_i) / A + sum_n a^n,  s = sum_m a^m

Only nonzero a are kept, as lists (_lists.pxd).
"""

import numpy as np

from libc.math cimport INFINITY, fabs
from libc.stdint cimport int32_t, int64_t

from _lists cimport Node, put_first, set_free
from _sparse cimport Ahead, Row, look_ahead, row_feature, row_values, value_mask, value_t


# bias: the value of the bias feature; weston: WW, else CS. linear: the linear part of the dual; losses: met on the way;
# violation: the largest of a loop; effort: values g computed. A loop stands at order[place] of order[.. active-1].
cdef struct State:
    double bias
    double linear
    double losses
    double violation
    double effort
    int64_t weston
    int64_t place
    int64_t active


cdef State _state
STATE = np.asarray(<State[:1]>&_state).dtype


# W: of feature f and class m at f * k + m, that of the bias feature behind all others.
cdef struct Weights:
    double* W
    int64_t k
    double* of_bias
    double bias


cdef inline Weights weights_of(const double[:, ::1] W, double bias) noexcept nogil:
    cdef Weights weights
    weights.W = <double*>&W[0, 0]  # which may be only read
    weights.k = W.shape[1]
    weights.of_bias = <double*>&W[W.shape[0] - 1, 0]
    weights.bias = bias
    return weights


cdef inline void dots(const Weights* w, const Row* row, const value_t* kind, double* scores) noexcept nogil:
    """scores[m] = w_m.x for all m."""
    cdef int64_t f, m, k = w.k, mask = value_mask(row)
    cdef const value_t* values = row_values(row, kind)
    cdef const double* weights = w.of_bias
    cdef double value, bias = w.bias
    for m in range(k):
        scores[m] = bias * weights[m]
    for f in range(row.length):
        weights = w.W + row_feature(row, f) * k
        value = values[f & mask]
        for m in range(k):
            scores[m] += value * weights[m]


cdef inline void dots_of(
    const Weights* w, const Row* row, const value_t* kind, const int32_t* classes, int64_t count, double* scores
) noexcept nogil:
    """scores[m] = w_m.x for these m."""
    cdef int64_t f, c, k = w.k, mask = value_mask(row)
    cdef const value_t* values = row_values(row, kind)
    cdef const double* weights = w.of_bias
    cdef double value
    for c in range(count):
        scores[classes[c]] = w.bias * weights[classes[c]]
    for f in range(row.length):
        weights = w.W + row_feature(row, f) * k
        value = values[f & mask]
        for c in range(count):
            scores[classes[c]] += value * weights[classes[c]]


cdef inline void add_to(
    const Weights* w, const Row* row, const value_t* kind, const int32_t* classes, int64_t count, const double* changes
) noexcept nogil:
    """w_m += changes[m] x for these m."""
    cdef int64_t f, c, k = w.k, mask = value_mask(row)
    cdef const value_t* values = row_values(row, kind)
    cdef double* weights = w.of_bias
    cdef double value
    for c in range(count):
        weights[classes[c]] += changes[classes[c]] * w.bias
    for f in range(row.length):
        weights = w.W + row_feature(row, f) * k
        value = values[f & mask]
        for c in range(count):
            weights[classes[c]] += changes[classes[c]] * value


cdef inline double solve_cs(
    double A, double C, int32_t y, const int32_t* classes, int64_t count, const double* scores, const double* alphas,
    double* new
) noexcept nogil:
    """The best alphas of these classes, y among them; returns how far the old ones were from it (v of the paper)."""
    cdef int64_t c, members
    cdef int32_t m
    cdef double g, highest = -INFINITY, lowest = INFINITY, largest = -INFINITY, total, threshold, higher, others = 0
    for c in range(count):
        m = classes[c]
        g = scores[m] + (m != y)
        highest = max(highest, g)
        if alphas[m] < (C if m == y else 0.0):
            lowest = min(lowest, g)
        new[m] = g - A * (alphas[m] - (C if m == y else 0.0))
        largest = max(largest, new[m])
    if highest - lowest <= 1e-12:
        return 0
    # With D less its largest, so that small differences count. Those above the threshold alone determine it: it rises,
    # and there are ever fewer of them, but the largest is always one.
    threshold = -INFINITY
    while True:
        members = 0
        total = -A * C
        for c in range(count):
            if new[classes[c]] - largest > threshold:
                total += new[classes[c]] - largest
                members += 1
        higher = total / members if members else threshold
        if not higher > threshold:
            break
        threshold = higher
    for c in range(count):
        m = classes[c]
        if m != y:
            new[m] = -max(0.0, new[m] - largest - threshold) / A
            others += new[m]
    new[y] = min(C, -others)
    return highest - lowest


cdef inline double solve_ww(
    double A, double C, int32_t y, const int32_t* classes, int64_t count, const double* scores, const double* alphas,
    double* new
) noexcept nogil:
    """The best alphas of these classes, y not counting; returns how far the old ones were from it (v of the paper)."""
    cdef int64_t c, free
    cdef int32_t m
    cdef double g, a, before = 0, violation = 0, s, low, high, fixed, total
    for c in range(count):
        m = classes[c]
        if m != y:
            before += alphas[m]
    for c in range(count):
        m = classes[c]
        if m == y:
            continue
        g = scores[y] - scores[m] - 1
        if alphas[m] < C:
            violation = max(violation, -g)
        if alphas[m] > 0:
            violation = max(violation, g)
        new[m] = alphas[m] - g / A + before
    if violation <= 1e-12:
        return 0
    # s = sum_m min(C, max(0, t^m - s)): the right side falls as s rises, so the root lies between what both sides say.
    low, high, s = 0, C * count, before
    while True:
        free, fixed, total = 0, 0, 0
        for c in range(count):
            m = classes[c]
            if m == y:
                continue
            a = new[m] - s
            if a >= C:
                fixed += C
                total += C
            elif a > 0:
                free += 1
                fixed += new[m]
                total += a
        if total > s:
            low = s
        else:
            high = s
        a = fixed / (1 + free)
        if fabs(a - s) <= 1e-15 * (s + C) or high - low <= 1e-15 * (s + C):
            break
        s = a if low < a < high else 0.5 * (low + high)
    for c in range(count):
        m = classes[c]
        if m != y:
            new[m] = min(C, max(0.0, new[m] - s))
    return violation


cdef inline bint is_settled(
    const double* alphas, const int32_t* classes, int64_t count, double C, bint weston
) noexcept nogil:
    """Whether a row needs no visit in loops over the active ones: no alpha is free, or two have the size of C."""
    cdef int64_t c, n = 0
    cdef double a
    for c in range(count):
        a = fabs(alphas[classes[c]])
        n += a > 0
        if 0 < a < C:
            return False
    return weston or n <= 2


cdef inline void store(
    Node* nodes, int32_t* head, double* alphas, const int32_t* classes, int64_t count
) noexcept nogil:
    """Makes a list of the nonzero alphas of a row, which are among these classes (some twice), and sets them to 0."""
    cdef int64_t c
    set_free(nodes, head)
    for c in range(count):
        if alphas[classes[c]] != 0:
            put_first(nodes, head, classes[c], alphas[classes[c]])
            alphas[classes[c]] = 0


def loop(
    const Row[:] rows, int32_t[::1] order, double[:, ::1] W, int32_t[::1] head, Node[::1] nodes, State[::1] states,
    const double[::1] costs, bint full, int64_t most, double[:, ::1] numbers, int32_t[:, ::1] classes,
    const value_t[::1] kind
):
    """Visits rows[order[state.place .. state.active-1]], changing W, head, nodes and the state.

    costs[m] is C of class m. full: all classes of all rows, else those with nonzero alphas (WW: with free ones), and
    rows that need no more visits leave the first `active` entries of order. numbers: zeros (3, k), and classes (2, 2 k
    + 1), for work. Stops where fewer than 2 k nodes are free, and after `most` visits. kind is any array of the value
    type. Returns whether all have been visited.
    """
    cdef State* state = &states[0]
    cdef const Row* row
    cdef Weights w = weights_of(W, state.bias)
    cdef int64_t s = state.place, active = state.active, k = W.shape[1], c, count, listed, changed
    cdef int32_t slot, y, m, node
    cdef double A, C, violation, change, total
    cdef double* scores = &numbers[0, 0]
    cdef double* alphas = &numbers[1, 0]
    cdef double* new = &numbers[2, 0]
    cdef int32_t* chosen = &classes[0, 0]
    cdef int32_t* listed_classes = &classes[1, 0]
    cdef int32_t* moved
    cdef bint settled, weston = state.weston
    cdef Ahead ahead = [0, 0]
    with nogil:
        while s < active and nodes[0].label >= 2 * k and most > 0:
            most -= 1
            look_ahead(&ahead, &rows[0], rows.strides[0], &order[0], s, active, sizeof(value_t))
            slot = order[s]
            row = &rows[slot]
            y = row.code
            C = costs[y]
            A = <double>row.norm * row.norm + w.bias * w.bias
            listed = 0
            node = head[slot]
            while node:
                alphas[nodes[node].label] = nodes[node].value
                listed_classes[listed] = nodes[node].label
                listed += 1
                node = nodes[node].next
            count = 0
            if full:
                for c in range(k):
                    chosen[c] = <int32_t>c
                count = k
                dots(&w, row, &kind[0], scores)
                state.losses += C * row_loss(scores, k, y, weston)
            else:
                for c in range(listed):
                    if not weston or 0 < alphas[listed_classes[c]] < C:
                        chosen[count] = listed_classes[c]
                        count += 1
                if weston:
                    chosen[count] = y
                    count += 1
                dots_of(&w, row, &kind[0], chosen, count, scores)
            state.effort += count
            if A <= 0:
                violation = solve_empty(C, y, chosen, count, alphas, new, weston)
            elif weston:
                violation = solve_ww(A, C, y, chosen, count, scores, alphas, new)
            else:
                violation = solve_cs(A, C, y, chosen, count, scores, alphas, new)
            changed = 0
            if violation > 0:
                state.violation = max(state.violation, violation)
                moved = listed_classes + listed
                total = 0
                for c in range(count):
                    m = chosen[c]
                    change = new[m] - alphas[m]
                    if change == 0 or (weston and m == y):
                        continue
                    alphas[m] = new[m]
                    total += change
                    if weston or m == y:
                        state.linear += change
                    new[m] = -change if weston else change
                    moved[changed] = m
                    changed += 1
            settled = not full and is_settled(alphas, chosen, count, C, weston)
            if changed:
                if weston:
                    new[y] = total
                    moved[changed] = y
                add_to(&w, row, &kind[0], moved, changed + weston, new)
                store(&nodes[0], &head[slot], alphas, listed_classes, listed + changed)
            else:
                for c in range(listed):
                    alphas[listed_classes[c]] = 0
            if settled:
                active -= 1
                order[s] = order[active]
                order[active] = slot
            else:
                s += 1
    state.place = s
    state.active = active
    return s == active


cdef inline double solve_empty(
    double C, int32_t y, const int32_t* classes, int64_t count, const double* alphas, double* new, bint weston
) noexcept nogil:
    """Of a row without features, on which W does not depend: all alphas are as large as they may be."""
    cdef int64_t c
    cdef int32_t m, other = y == 0
    cdef double violation = 0
    for c in range(count):
        m = classes[c]
        if weston:
            new[m] = 0 if m == y else C
        else:
            new[m] = C if m == y else -C if m == other else 0
        violation = max(violation, fabs(new[m] - alphas[m]))
    return violation


cdef inline double row_loss(const double* scores, int64_t k, int64_t y, bint weston) noexcept nogil:
    cdef int64_t m
    cdef double loss = 0, z
    for m in range(k):
        z = 1 - scores[y] + scores[m]
        if m != y and z > 0:
            loss = loss + z if weston else max(loss, z)
    return loss


def losses(
    const Row[:] rows, const double[:, ::1] W, double bias, const double[::1] costs, bint weston, double[::1] scores,
    const value_t[::1] kind
):
    """sum_i C_i loss_i over rows; scores: k numbers, for work."""
    cdef int64_t r, k = W.shape[1]
    cdef double total = 0
    cdef Weights w = weights_of(W, bias)
    with nogil:
        for r in range(rows.shape[0]):
            dots(&w, &rows[r], &kind[0], &scores[0])
            total += costs[rows[r].code] * row_loss(&scores[0], k, rows[r].code, weston)
    return total


def chosen_rows(
    const Row[:] rows, const int32_t[::1] head, const Node[::1] nodes, const double[::1] costs, bint weston,
    int32_t[::1] order
):
    """Writes the places of the rows that loops over the active ones visit to order; returns how many."""
    cdef int64_t r, n = 0, n_nonzero
    cdef int32_t node
    cdef bint free
    cdef double a, C
    with nogil:
        for r in range(head.shape[0]):
            node = head[r]
            n_nonzero = 0
            free = False
            C = costs[rows[r].code]
            while node:
                a = fabs(nodes[node].value)
                free = free or a < C
                n_nonzero += 1
                node = nodes[node].next
            if free or (not weston and n_nonzero > 2):
                order[n] = <int32_t>r
                n += 1
    return n
