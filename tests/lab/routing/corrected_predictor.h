// Any estimator with its last errors added (ShareCorrection), as an estimator.
//
// Corrects what one rank's rows get.  Where the ranks' sums are gathered anyway, a ShareCorrection over the sums costs
// less and sees less noise; the two differ only where a share is clipped.
// Observe asks the inner estimator once more, before it observes: its Estimate must then still be that of the batch.
#pragma once

#include <memory>
#include <vector>

#include "tests/lab/routing/load_predictor.h"
#include "tests/lab/routing/share_correction.h"

namespace switchyard {

class CorrectedPredictor : public LoadPredictor {
 public:
  CorrectedPredictor(std::unique_ptr<LoadPredictor> inner, popularity::RoutingShape shape);

  popularity::Popularity Estimate(const popularity::RoutingView& batch, int layer) const override;
  void Observe(const popularity::RoutingView& batch, int layer) override;

 private:
  std::unique_ptr<LoadPredictor> inner_;
  std::vector<ShareCorrection> corrections_;  // [L]
};

}  // namespace switchyard
