//! The statuses and codes of providers, and what they mean.
//!
//! A code belongs here if it says by itself what is wrong. A number, and a status that HTTP does not define, means something at its
//! vendor only, and stands in `catalogue/vendors.toml`. The numbers here bear the name of a vendor, because they come in a form that
//! only this vendor uses.

use crate::domain::model::ModelErrorKind;

/// The class of a refusal by its status alone.
pub(super) fn kind_of_status(status: u16) -> ModelErrorKind {
    match status {
        401 | 403 => ModelErrorKind::Auth,
        402 => ModelErrorKind::Quota,
        408 => ModelErrorKind::Timeout,
        413 => ModelErrorKind::ContextOverflow,
        429 => ModelErrorKind::RateLimit,
        503 | 529 => ModelErrorKind::Overloaded,
        // A generation that failed (Text Generation Inference), and a cancelled call (Google).
        409 | 424 | 425 | 499 | 500.. => ModelErrorKind::Unavailable,
        _ => ModelErrorKind::InvalidRequest,
    }
}

/// The codes and types that providers document, in lower case.
pub(super) fn kind_of_code(code: &str) -> Option<ModelErrorKind> {
    Some(match code {
        "context_length_exceeded"
        | "context_window_exceeded"
        | "exceed_context_size_error"
        | "too_many_prompt_tokens"
        | "model_max_prompt_tokens_exceeded"
        | "tokens_limit_reached"
        | "request_too_large"
        | "tokens_too_long"
        | "characters_too_long"
        | "baidu_336103" => ModelErrorKind::ContextOverflow,
        "insufficient_quota"
        | "insufficient_balance"
        | "insufficient_credits"
        | "billing_hard_limit_reached"
        | "billing_not_active"
        | "billing_error"
        | "exceeded_current_quota_error"
        | "spend_limit_exceeded"
        | "quota_of_the_day"
        | "billing_disabled"
        | "payment_required"
        | "insufficient_balance_error"
        | "arrearage"
        | "quota_exceeded"
        | "usage_limit_reached"
        | "usage_not_included"
        | "credit_limit"
        | "servicequotaexceededexception"
        // Volcengine's.
        | "accountoverdueerror"
        | "quotaexceeded"
        | "setlimitexceeded"
        // Of a day, and of all time.
        | "baidu_17"
        | "baidu_19"
        | "minimax_1008"
        | "minimax_2056" => ModelErrorKind::Quota,
        "invalid_api_key"
        | "api_key_invalid"
        | "incorrect_api_key_provided"
        | "authentication_error"
        | "invalid_authentication_error"
        | "permission_error"
        | "permission_denied"
        | "unauthenticated"
        | "unauthorized"
        | "account_deactivated"
        | "accessdeniedexception"
        | "iflow_434"
        | "iflow_439"
        | "invalidapikey"
        | "baidu_6"
        | "baidu_13"
        | "baidu_14"
        | "baidu_110"
        | "baidu_111"
        | "minimax_1004"
        | "minimax_2049" => ModelErrorKind::Auth,
        "rate_limit_exceeded"
        | "ratelimitexceeded"
        | "rate_limit_error"
        | "rate_limit_reached_error"
        | "too_many_requests"
        | "throttlingexception"
        // Databricks'.
        | "request_limit_exceeded"
        // Volcengine's.
        | "requestbursttoofast"
        | "modelaccountrpmratelimitexceeded"
        | "modelaccounttpmratelimitexceeded"
        // DashScope's.
        | "throttling"
        | "limit_requests"
        | "limit_burst_rate"
        | "iflow_449"
        | "baidu_18"
        | "baidu_336501"
        | "baidu_336502"
        | "minimax_1002"
        | "minimax_1039"
        | "minimax_1041"
        | "minimax_2045" => ModelErrorKind::RateLimit,
        "overloaded"
        | "overloaded_error"
        | "engine_overloaded"
        | "engine_overloaded_error"
        | "insufficient_system_resource"
        | "service_unavailable"
        | "service_unavailable_error"
        | "server_is_overloaded"
        | "slow_down"
        | "serveroverloaded"
        | "serviceunavailableexception"
        | "service_tier_capacity_exceeded"
        | "baidu_2"
        | "baidu_4"
        | "baidu_336100"
        // Databricks'.
        | "temporarily_unavailable"
        // Cerebras, of a queue that all share.
        | "queue_exceeded"
        | "capacity_exceeded"
        | "unavailable" => ModelErrorKind::Overloaded,
        // `invalid_prompt` is the Responses API's word for a prompt that was flagged.
        "content_filter"
        | "content_policy_violation"
        | "responsibleaipolicyviolation"
        | "moderation_blocked"
        | "invalid_prompt"
        | "data_inspection_failed"
        | "datainspectionfailed"
        // Volcengine's.
        | "sensitivecontentdetected"
        | "inputtextsensitivecontentdetected"
        | "inputimagesensitivecontentdetected"
        | "outputtextsensitivecontentdetected"
        | "minimax_1026"
        | "minimax_1027"
        | "image_content_policy_violation" => ModelErrorKind::ContentFilter,
        // Groq and others refuse what their own model wrote; another try is another answer.
        "tool_use_failed" | "json_validate_failed" | "output_parse_failed" => ModelErrorKind::BadStream,
        "server_error"
        | "internal_server_error"
        | "internal_error"
        | "api_error"
        | "internal"
        | "internalserverexception"
        // DashScope's and Volcengine's.
        | "internalerror"
        | "internalserviceerror"
        | "modelstreamerrorexception" => ModelErrorKind::Unavailable,
        "timeout" | "timeout_error" | "request_timeout" | "gateway_timeout" | "deadline_exceeded" | "modeltimeoutexception" | "minimax_1001" => {
            ModelErrorKind::Timeout
        }
        "invalid_request_error"
        | "invalid_request"
        | "bad_request"
        | "model_not_found"
        | "not_found_error"
        | "invalid_argument"
        | "invalid_image"
        | "invalid_image_format"
        | "invalid_base64_image"
        | "invalid_image_url"
        | "image_too_large"
        | "image_too_small"
        | "image_parse_error"
        | "invalid_image_mode"
        | "image_file_too_large"
        | "unsupported_image_media_type"
        | "empty_image_file"
        | "failed_to_download_image"
        | "image_file_not_found"
        | "invalidparameter"
        // Databricks'.
        | "invalid_parameter_value"
        | "resource_does_not_exist"
        | "validationexception"
        | "baidu_3"
        | "baidu_100"
        | "baidu_336001"
        | "baidu_336002"
        | "baidu_336003"
        | "minimax_2013" => ModelErrorKind::InvalidRequest,
        // DashScope and Volcengine say behind a point which of them it is, such as `Throttling.RateQuota`.
        _ => return code.split_once('.').and_then(|(class, _)| kind_of_code(class)),
    })
}
