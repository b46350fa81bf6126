// A MoE layer's forward and backward, naive and in double, one token after the other.  Shares no code with workers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace switchyard::reference {

// Weights, or gradients of them; row-major.
struct MoeMatrices {
  std::vector<double> router;                // [E, H]
  std::vector<std::vector<double>> gate_up;  // [E][2F, H] gate's rows, then up's
  std::vector<std::vector<double>> down;     // [E][H, F]
  std::vector<double> shared_gate_up;        // [2Fs, H]; empty = no shared expert
  std::vector<double> shared_down;           // [H, Fs]
  std::vector<double> shared_gate;           // [H]; empty = weight 1
};

struct MoeProblem {
  int64_t hidden = 0, top_k = 0;
  bool renormalize = false;
  MoeMatrices weights;
  std::vector<double> x, dy;          // [T, H]
  std::vector<double> prob_gradient;  // [E] or empty: the loss has Σ_t Σ_e of this times p[t, e]
  double z_scale = 0;                 // and this times Σ_t logsumexp(logits[t])²
};

struct MoeAnswer {
  std::vector<double> y;   // [T, H] what the layer adds to the residual
  double loss = 0;         // Σ dy · y and the router's losses
  std::vector<double> dx;  // [T, H]
  MoeMatrices gradients;
};

inline std::vector<double> TimesRows(const std::vector<double>& w, const std::vector<double>& x) {  // W x
  std::vector<double> y(w.size() / x.size(), 0.0);
  for (size_t n = 0; n < y.size(); ++n) {
    for (size_t k = 0; k < x.size(); ++k) y[n] += w[n * x.size() + k] * x[k];
  }
  return y;
}

// dx += Wᵀ dy, dW += dy xᵀ.
inline void ProductBackward(const std::vector<double>& w, const std::vector<double>& x, const std::vector<double>& dy,
                            std::vector<double>* dx, std::vector<double>* dw) {
  for (size_t n = 0; n < dy.size(); ++n) {
    for (size_t k = 0; k < x.size(); ++k) {
      (*dx)[k] += w[n * x.size() + k] * dy[n];
      (*dw)[n * x.size() + k] += dy[n] * x[k];
    }
  }
}

struct FfnPass {
  std::vector<double> gate, up, hidden, y;
};

inline FfnPass Ffn(const std::vector<double>& gate_up, const std::vector<double>& down, const std::vector<double>& x) {
  const std::vector<double> sums = TimesRows(gate_up, x);
  const auto middle = sums.begin() + static_cast<int64_t>(sums.size() / 2);
  FfnPass pass = {.gate = {sums.begin(), middle}, .up = {middle, sums.end()}, .hidden = {}, .y = {}};
  for (size_t f = 0; f < pass.gate.size(); ++f) {
    pass.hidden.push_back(pass.gate[f] / (1 + std::exp(-pass.gate[f])) * pass.up[f]);
  }
  pass.y = TimesRows(down, pass.hidden);
  return pass;
}

struct FfnMatrices {
  const std::vector<double>& gate_up;
  const std::vector<double>& down;
};
struct FfnSums {
  std::vector<double>* gate_up;
  std::vector<double>* down;
};

// dy: of the feed-forward's output.
inline void FfnBackward(const FfnMatrices& w, const FfnPass& pass, const std::vector<double>& x,
                        const std::vector<double>& dy, std::vector<double>* dx, const FfnSums& sums) {
  std::vector<double> d_hidden(pass.hidden.size(), 0.0), d_sums(2 * pass.hidden.size());
  ProductBackward(w.down, pass.hidden, dy, &d_hidden, sums.down);
  for (size_t f = 0; f < d_hidden.size(); ++f) {
    const double g = pass.gate[f], s = 1 / (1 + std::exp(-g));
    d_sums[f] = d_hidden[f] * pass.up[f] * s * (1 + g * (1 - s));
    d_sums[d_hidden.size() + f] = d_hidden[f] * g * s;
  }
  ProductBackward(w.gate_up, x, d_sums, dx, sums.gate_up);
}

inline MoeMatrices ZerosLike(const MoeMatrices& w) {
  MoeMatrices zeros = w;
  const auto clear = [](std::vector<double>* values) { std::fill(values->begin(), values->end(), 0.0); };
  clear(&zeros.router);
  for (auto& matrix : zeros.gate_up) clear(&matrix);
  for (auto& matrix : zeros.down) clear(&matrix);
  clear(&zeros.shared_gate_up);
  clear(&zeros.shared_down);
  clear(&zeros.shared_gate);
  return zeros;
}

inline double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}
inline std::vector<double> Times(double factor, std::vector<double> values) {
  for (double& value : values) value *= factor;
  return values;
}

// A row's router.
struct MoeGate {
  std::vector<double> p;       // [E]
  std::vector<size_t> chosen;  // [K]
  std::vector<double> weight;  // [K]
  double kept = 0, logsumexp = 0;
};

inline MoeGate Gate(const MoeProblem& problem, const std::vector<double>& x) {
  MoeGate gate;
  gate.p = TimesRows(problem.weights.router, x);
  const double largest = *std::max_element(gate.p.begin(), gate.p.end());
  double total = 0;
  for (double& value : gate.p) total += value = std::exp(value - largest);
  for (double& value : gate.p) value /= total;
  gate.logsumexp = largest + std::log(total);
  std::vector<size_t> order(gate.p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return gate.p[a] > gate.p[b]; });
  order.resize(static_cast<size_t>(problem.top_k));
  gate.chosen = order;
  for (const size_t e : order) gate.kept += gate.p[e];
  for (const size_t e : order) gate.weight.push_back(gate.p[e] / (problem.renormalize ? gate.kept : 1));
  return gate;
}

// d_weight: [K].  Of the logits: [E].
inline std::vector<double> GateBackward(const MoeProblem& problem, const MoeGate& gate,
                                        const std::vector<double>& d_weight) {
  std::vector<double> dp = problem.prob_gradient;
  dp.resize(gate.p.size(), 0.0);
  const double mean = problem.renormalize ? Dot(d_weight, gate.weight) : 0;
  for (size_t k = 0; k < d_weight.size(); ++k) {
    dp[gate.chosen[k]] += (d_weight[k] - mean) / (problem.renormalize ? gate.kept : 1);
  }
  const double sum = Dot(dp, gate.p);
  std::vector<double> d_logits(gate.p.size());
  for (size_t e = 0; e < d_logits.size(); ++e) {
    d_logits[e] = gate.p[e] * (dp[e] - sum + 2 * problem.z_scale * gate.logsumexp);
  }
  return d_logits;
}

inline void SharedExpert(const MoeProblem& problem, const std::vector<double>& x, const std::vector<double>& dy,
                         std::vector<double>* y, std::vector<double>* dx, MoeMatrices* sums) {
  const MoeMatrices& w = problem.weights;
  const FfnPass pass = Ffn(w.shared_gate_up, w.shared_down, x);
  const bool gated = !w.shared_gate.empty();
  const double s = gated ? 1 / (1 + std::exp(-Dot(w.shared_gate, x))) : 1.0;
  for (size_t h = 0; h < y->size(); ++h) (*y)[h] += s * pass.y[h];
  FfnBackward({w.shared_gate_up, w.shared_down}, pass, x, Times(s, dy), dx,
              {&sums->shared_gate_up, &sums->shared_down});
  if (gated) ProductBackward(w.shared_gate, x, {Dot(dy, pass.y) * s * (1 - s)}, dx, &sums->shared_gate);
}

inline MoeAnswer MoeBackward(const MoeProblem& problem) {
  const MoeMatrices& w = problem.weights;
  MoeAnswer answer;
  answer.gradients = ZerosLike(w);
  const auto hidden = problem.hidden;
  for (int64_t t = 0; t * hidden < static_cast<int64_t>(problem.x.size()); ++t) {
    const std::vector<double> x(problem.x.begin() + t * hidden, problem.x.begin() + (t + 1) * hidden);
    const std::vector<double> dy(problem.dy.begin() + t * hidden, problem.dy.begin() + (t + 1) * hidden);
    std::vector<double> y(static_cast<size_t>(hidden), 0.0), dx = y, d_weight;
    const MoeGate gate = Gate(problem, x);
    for (size_t k = 0; k < gate.chosen.size(); ++k) {
      const size_t e = gate.chosen[k];
      const FfnPass pass = Ffn(w.gate_up[e], w.down[e], x);
      for (size_t h = 0; h < y.size(); ++h) y[h] += gate.weight[k] * pass.y[h];
      d_weight.push_back(Dot(dy, pass.y));
      FfnBackward({w.gate_up[e], w.down[e]}, pass, x, Times(gate.weight[k], dy), &dx,
                  {&answer.gradients.gate_up[e], &answer.gradients.down[e]});
    }
    if (!w.shared_gate_up.empty()) SharedExpert(problem, x, dy, &y, &dx, &answer.gradients);
    ProductBackward(w.router, x, GateBackward(problem, gate, d_weight), &dx, &answer.gradients.router);
    answer.loss += Dot(dy, y) + problem.z_scale * gate.logsumexp * gate.logsumexp;
    if (!problem.prob_gradient.empty()) answer.loss += Dot(problem.prob_gradient, gate.p);
    answer.y.insert(answer.y.end(), y.begin(), y.end());
    answer.dx.insert(answer.dx.end(), dx.begin(), dx.end());
  }
  return answer;
}

}  // namespace switchyard::reference
