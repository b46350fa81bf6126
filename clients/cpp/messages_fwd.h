// Forward declarations of the API's messages, for headers of clients; code that uses a message includes
// switchyard/v1/*.pb.h.
#pragma once

namespace switchyard::v1 {

// inference.proto
class DetokenizeRequest;
class DetokenizeResponse;
class GenerateRequest;
class GenerateResponse;
class GetLoadResponse;
class GetModelInfoResponse;
class Messages;
class TokenizeRequest;
class TokenizeResponse;

// admin.proto
class GetExpertsRequest;
class GetExpertsResponse;
class GetPlanResponse;
class GetProfileRequest;
class GetProfileResponse;

// training.proto
class DeleteJobResponse;
class ForkJobRequest;
class ForkJobResponse;
class Job;
class JobSpec;
class ListJobsRequest;
class ListJobsResponse;
class PackDataRequest;
class PackDataResponse;
class ResumeJobRequest;
class SubmitJobRequest;
class SubmitJobResponse;
class WatchJobRequest;
enum JobState : int;

}  // namespace switchyard::v1
