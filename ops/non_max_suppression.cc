// NonMaxSuppression: greedy choice of boxes by score, per image and class, dropping those that
// overlap a chosen one by more than iou_threshold. Gives [chosen, 3]: image, class, box.
//
// How many are chosen depends on the contents, so boxes, scores and limits must be known before
// training; refused otherwise, by name. Equal scores: the lower box number first. Nothing to
// differentiate: the result is a list of indices.
#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "graph/op_def.h"
#include "runtime/kernel.h"

namespace ortrain::ops {
namespace {

constexpr double kMostComparisons = 4e9;  // seconds of work; beyond that the node is refused

struct Problem {
  HostTensor boxes, scores;  // f32
  int64_t most = 0;
  double overlap = 0;
  bool has_floor = false;
  float floor = 0;
  bool centers = false;  // boxes are x, y, width, height; else two corners y, x
};

struct Box {
  float x0, x1, y0, y1;
};

Box box_of(const Problem& p, int64_t at) {
  const float* b = p.boxes.data<float>() + at * 4;
  if (p.centers) return {b[0] - b[2] / 2, b[0] + b[2] / 2, b[1] - b[3] / 2, b[1] + b[3] / 2};
  return {std::min(b[1], b[3]), std::max(b[1], b[3]), std::min(b[0], b[2]), std::max(b[0], b[2])};
}

bool overlaps(const Box& a, const Box& b, double limit) {
  const float w = std::min(a.x1, b.x1) - std::max(a.x0, b.x0);
  const float h = std::min(a.y1, b.y1) - std::max(a.y0, b.y0);
  if (!(w > 0 && h > 0)) return false;
  const float both = w * h, one = (a.x1 - a.x0) * (a.y1 - a.y0);
  const float other = (b.x1 - b.x0) * (b.y1 - b.y0), all = one + other - both;
  if (!(both > 0 && one > 0 && other > 0 && all > 0)) return false;
  return static_cast<double>(both / all) > limit;
}

// image, class and box of everything that is chosen.
std::vector<int64_t> choose(const Problem& p) {
  const int64_t images = p.scores.dims()[0], classes = p.scores.dims()[1];
  const int64_t count = p.scores.dims()[2];
  const auto most = std::min(p.most, count);
  if (static_cast<double>(images * classes) * static_cast<double>(count) *
          static_cast<double>(most) >
      kMostComparisons)
    fail(ErrorCode::kUnsupported, images, " images, ", classes, " classes, ", count,
         " boxes with up to ", most, " chosen are more than can be compared before training");
  std::vector<int64_t> out;
  for (int64_t i = 0; i < images; ++i)
    for (int64_t c = 0; c < classes; ++c) {
      const float* score = p.scores.data<float>() + (i * classes + c) * count;
      std::vector<int64_t> order;
      for (int64_t k = 0; k < count; ++k)
        if (score[k] == score[k] && (!p.has_floor || score[k] > p.floor)) order.push_back(k);
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return score[a] > score[b]; });
      std::vector<Box> chosen;
      for (size_t k = 0; k < order.size() && static_cast<int64_t>(chosen.size()) < most; ++k) {
        const Box box = box_of(p, i * count + order[k]);
        const bool hit = std::any_of(chosen.begin(), chosen.end(), [&](const Box& other) {
          return overlaps(box, other, p.overlap);
        });
        if (hit) continue;
        chosen.push_back(box);
        out.insert(out.end(), {i, c, order[k]});
      }
    }
  return out;
}

// get(i): contents of input i, or null when absent or not known; has(i): whether it is there.
template <class Get, class Has>
Problem problem(const Attrs& attrs, Get&& get, Has&& has) {
  const auto known = [&](int i, const char* what) {
    const HostTensor* t = get(i);
    if (!t)
      fail(ErrorCode::kUnsupported, "the number of chosen boxes depends on ", what,
           ", which is not known before training; ortrain plans before step 1");
    return t;
  };
  const auto number = [&](int i, const char* what) -> const HostTensor* {
    if (!has(i)) return nullptr;
    const HostTensor* t = known(i, what);
    if (t->count() > 1) fail(ErrorCode::kShape, what, " has ", t->count(), " elements, expected 1");
    return t->count() ? t : nullptr;
  };
  const HostTensor *boxes = known(0, "boxes"), *scores = known(1, "scores");
  const Dims &b = boxes->dims(), &s = scores->dims();
  if (b.size() != 3 || s.size() != 3 || b[2] != 4 || b[0] != s[0] || b[1] != s[2])
    fail(ErrorCode::kShape, "boxes ", Shape(b).str(), " and scores ", Shape(s).str(),
         ", expected [N,B,4] and [N,C,B]");
  Problem p{boxes->cast(DType::kF32), scores->cast(DType::kF32)};
  if (const HostTensor* t = number(2, "max_output_boxes_per_class"))
    p.most = std::max<int64_t>(t->as_int(0), 0);
  if (const HostTensor* t = number(3, "iou_threshold")) p.overlap = t->as_double(0);
  if (const HostTensor* t = number(4, "score_threshold"))
    p.has_floor = true, p.floor = static_cast<float>(t->as_double(0));
  p.centers = attrs.i("center_point_box", 0) != 0;
  return p;
}

void infer(InferCtx& c) {
  const std::vector<int64_t> chosen = choose(problem(
      c.attrs(), [&](int i) { return c.has(i) ? c.constant(i) : nullptr; },
      [&](int i) { return c.has(i); }));
  c.out(0, DType::kI64, {Dim(static_cast<int64_t>(chosen.size()) / 3), 3});
  if (chosen.size() <= 4096) c.out_ints(0, {chosen.begin(), chosen.end()});
}

Kernel kernel(const KernelQuery& q) {
  std::vector<int64_t> chosen = choose(problem(
      q.attrs, [&](int i) { return q.constant(static_cast<size_t>(i)); },
      [&](int i) { return q.has_in(static_cast<size_t>(i)); }));
  return {0, [chosen = std::move(chosen)](const KernelArgs& a) {
            std::copy(chosen.begin(), chosen.end(), a.y<int64_t>(0));
          }};
}

}  // namespace

void register_non_max_suppression(OpTable& table) {
  const auto known = [](Dims dims, std::vector<double> values) {
    ExampleInput e = floats(std::move(dims), std::move(values));
    e.constant = true;
    return e;
  };
  const auto one = [&](double v) { return known({1}, {v}); };
  const ExampleInput boxes = known(
      {1, 5, 4}, {0, 0, 1, 1, 0, 0.1, 1, 1.1, 0, -0.1, 1, 0.9, 0, 10, 1, 11, 2.1, 10.1, 1, 11.1});
  const ExampleInput scores =
      known({1, 2, 5}, {0.9, 0.75, 0.6, 0.95, 0.5, 0.3, 0.8, 0.8, 0.1, 0.7});
  table.add({
      .name = "NonMaxSuppression",
      .inputs = {"boxes", "scores", "max_output_boxes_per_class?", "iou_threshold?",
                 "score_threshold?"},
      .outputs = {"selected_indices"},
      .since = 10,
      .infer = infer,
      .grad = {no_grad("boxes"), no_grad("scores"), no_grad("max_output_boxes_per_class"),
               no_grad("iou_threshold"), no_grad("score_threshold")},
      .precision = Precision::kNever16,
      .kernels = {{"cpu", "ref", nullptr, kernel}},
      .examples = {{.in = {boxes, scores, iconst({1}, {2}), one(0.5)}},
                   {.in = {boxes, scores, iconst({}, {3}), one(0.5), one(0.4)},
                    .attrs = {{"center_point_box", 1}}},
                   {.in = {boxes, scores}}},
      .note = "inputs must be known before training",
  });
}

}  // namespace ortrain::ops
