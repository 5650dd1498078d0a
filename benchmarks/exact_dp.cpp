// The exact dynamic program over all ideals (the method of Tarnawski et al., NeurIPS'20), written
// from its definition as a peer: every pair of nested ideals, no windows, no merging of idle units.
// Input: units accelerators cpus limit; per unit: accelerator seconds, CPU seconds, bytes; edges;
// values as (cost, pins). Output: the least largest load and the number of ideals.
#include <algorithm>
#include <bitset>
#include <cstdio>
#include <unordered_map>
#include <vector>

using Set = std::bitset<384>;
constexpr double kInfinity = 1e300;

int main() {
    int units, accelerators, cpus;
    double limit;
    if (scanf("%d %d %d %lf", &units, &accelerators, &cpus, &limit) != 4 || units > 384) return 1;
    std::vector<double> fast(units), slow(units), bytes(units);
    for (int v = 0; v < units; ++v)
        if (scanf("%lf %lf %lf", &fast[v], &slow[v], &bytes[v]) != 3) return 1;
    int edges, values;
    std::vector<Set> before(units);
    if (scanf("%d", &edges) != 1) return 1;
    for (int e = 0, u, v; e < edges && scanf("%d %d", &u, &v) == 2; ++e) before[v].set(u);
    if (scanf("%d", &values) != 1) return 1;
    std::vector<double> price(values);
    std::vector<std::vector<int>> pins(values), values_of(units);
    for (int h = 0; h < values; ++h) {
        int count;
        if (scanf("%lf %d", &price[h], &count) != 2) return 1;
        pins[h].resize(count);
        for (int& v : pins[h]) {
            if (scanf("%d", &v) != 1) return 1;
            values_of[v].push_back(h);
        }
    }
    // all ideals, by size: each with its lower neighbours
    std::vector<Set> ideals{Set{}};
    std::vector<std::vector<std::pair<int, int>>> below(1);  // (ideal without the unit, unit)
    std::unordered_map<Set, int> index{{Set{}, 0}};
    for (size_t i = 0; i < ideals.size(); ++i)
        for (int v = 0; v < units; ++v) {
            if (ideals[i][v] || (before[v] & ~ideals[i]).any()) continue;
            Set more = ideals[i];
            more.set(v);
            auto [place, fresh] = index.emplace(more, int(ideals.size()));
            if (fresh) ideals.push_back(more), below.emplace_back();
            below[place->second].push_back({int(i), v});
        }
    const int states = (accelerators + 1) * (cpus + 1), n = int(ideals.size());
    std::vector<std::vector<double>> best(n, std::vector<double>(states, kInfinity));
    std::fill(best[0].begin(), best[0].end(), 0.0);
    std::vector<int> seen(n, -1), inside(values, 0);
    for (int target = 1; target < n; ++target) {
        struct Frame { int ideal; size_t next; int unit; };
        std::vector<Frame> stack{{target, 0, -1}};
        seen[target] = target;
        double work = 0, host = 0, paid = 0, held = 0;
        auto toggle = [&](int v, int sign) {
            work += sign * fast[v], host += sign * slow[v], held += sign * bytes[v];
            for (int h : values_of[v]) {
                const int size = int(pins[h].size());
                const bool was = inside[h] > 0 && inside[h] < size;
                inside[h] += sign;
                const bool is = inside[h] > 0 && inside[h] < size;
                paid += price[h] * (int(is) - int(was));
            }
        };
        // depth first through all ideals inside the target: the stage is what lies between
        while (!stack.empty()) {
            Frame& top = stack.back();
            if (top.next == below[top.ideal].size()) {
                if (top.unit >= 0) toggle(top.unit, -1);
                stack.pop_back();
                continue;
            }
            auto [source, v] = below[top.ideal][top.next++];
            if (seen[source] == target) continue;
            seen[source] = target;
            toggle(v, 1);
            const double load = held <= limit ? work + paid : kInfinity;
            for (int a = 0; a <= accelerators; ++a)
                for (int c = 0; c <= cpus; ++c) {
                    double& here = best[target][a * (cpus + 1) + c];
                    if (a) here = std::min(here, std::max(load, best[source][(a - 1) * (cpus + 1) + c]));
                    if (c) here = std::min(here, std::max(host, best[source][a * (cpus + 1) + c - 1]));
                }
            stack.push_back({source, 0, v});
        }
    }
    printf("%.12g %d\n", best[n - 1][states - 1], n);
}
