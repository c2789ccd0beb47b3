//! A tower layer: any HTTP service behind a gate.
//!
//! For each request the layer makes a [`Question`], asks the gate, and either answers 429 itself or
//! calls the service and adds the RateLimit fields to its response. It never reads bodies and spawns
//! nothing. On the embedded store it waits for nothing, as a decision takes microseconds; where the store is
//! on other machines, the request waits for the answer before the service is called.
//! Invariant: the inner service is called for an allowed request or for one without a question,
//! and for no other.

mod client_address;
mod question;

pub use client_address::{client_address, key_of_address};
pub use question::{Attributes, Question};

use crate::{Answer, AskError, Gate, RateLimitHeaders, headers};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tower_layer::Layer;
use tower_service::Service;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

type Ask = dyn Fn(&Parts) -> Option<Question> + Send + Sync;

/// Puts a [`Gate`] in front of HTTP services.
///
/// ```
/// use tidegate::layer::{Attributes, Question, RateLimitLayer};
/// # use tidegate::{Algorithm, Gate, LimiterSpec, Policy, Rules};
/// # let rules = Rules::new(Algorithm::SlidingLog, &["5 per minute".parse()?])?;
/// # let gate = Gate::embedded(Policy::new(vec![LimiterSpec::new("api", rules)])?);
/// // One limiter, with a key of your own making.
/// let by_key = RateLimitLayer::new(gate.clone(), |request| {
///     Some(Question::limiter("api", request.headers.get("x-api-key")?.as_bytes()))
/// });
/// // Or all limiters of a domain whose attributes the request has.
/// let by_attributes = RateLimitLayer::by_attributes(gate, Attributes::of_domain("login").header("user", "x-user"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RateLimitLayer {
    gate: Gate,
    ask: Arc<Ask>,
}

impl RateLimitLayer {
    /// Asks the gate what `ask` makes of each request; `None` lets the request through unasked.
    pub fn new(gate: Gate, ask: impl Fn(&Parts) -> Option<Question> + Send + Sync + 'static) -> RateLimitLayer {
        RateLimitLayer { gate, ask: Arc::new(ask) }
    }

    /// Asks the gate with the attributes that a request has. A request that meets no limiter, as it
    /// lacks their attributes, is allowed.
    #[must_use]
    pub fn by_attributes(gate: Gate, attributes: Attributes) -> RateLimitLayer {
        RateLimitLayer::new(gate, move |request| Some(attributes.question(request)))
    }
}

impl std::fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RateLimitLayer").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit { inner, layer: self.clone() }
    }
}

/// A service behind a gate; made by [`RateLimitLayer`].
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    layer: RateLimitLayer,
}

impl<S, RequestBody, ResponseBody> Service<Request<RequestBody>> for RateLimit<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>> + Clone + Send + 'static,
    S::Future: Send,
    RequestBody: Send + 'static,
    ResponseBody: From<String> + Send,
{
    type Response = Response<ResponseBody>;
    type Error = S::Error;
    type Future = RateLimitFuture<S::Future, ResponseBody, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let question = (self.layer.ask)(&parts);
        let request = Request::from_parts(parts, body);
        match question {
            None => RateLimitFuture::passed(self.inner.call(request), None),
            Some(question) if !self.layer.gate.is_embedded() => self.call_when_answered(question, request),
            Some(question) => match headers_if_allowed(question.put_to(&self.layer.gate)) {
                Ok(headers) => RateLimitFuture::passed(self.inner.call(request), headers),
                Err(refusal) => RateLimitFuture::refused(refusal),
            },
        }
    }
}

impl<S> RateLimit<S> {
    fn call_when_answered<RequestBody, ResponseBody>(
        &mut self,
        question: Question,
        request: Request<RequestBody>,
    ) -> RateLimitFuture<S::Future, ResponseBody, S::Error>
    where
        S: Service<Request<RequestBody>, Response = Response<ResponseBody>> + Clone + Send + 'static,
        S::Future: Send,
        RequestBody: Send + 'static,
        ResponseBody: From<String> + Send,
    {
        // The service that said it is ready is the one to be called; its clone has to say so anew.
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone);
        let gate = self.layer.gate.clone();
        RateLimitFuture::asking(Box::pin(async move {
            match headers_if_allowed(question.ask(&gate).await) {
                Err(refusal) => Ok(refusal),
                Ok(headers) => {
                    let mut response = ready.call(request).await?;
                    if let Some(headers) = headers {
                        add_headers(&mut response, headers);
                    }
                    Ok(response)
                }
            }
        }))
    }
}

/// The RateLimit fields of an allowed request, or the response that refuses it.
fn headers_if_allowed<B: From<String>>(
    answer: Result<Answer, AskError>,
) -> Result<Option<RateLimitHeaders>, Response<B>> {
    match answer {
        Ok(answer) if answer.allowed => Ok(RateLimitHeaders::of(&answer)),
        Ok(answer) => Err(denial(&answer)),
        Err(error) => Err(failure(&error)),
    }
}

type Asking<B, E> = Pin<Box<dyn Future<Output = Result<Response<B>, E>> + Send>>;

pin_project! {
    /// The response of a [`RateLimit`] service: the inner service's, or the gate's refusal.
    pub struct RateLimitFuture<F, B, E> {
        #[pin]
        passed: Option<F>,
        headers: Option<RateLimitHeaders>,
        refused: Option<Response<B>>,
        asking: Option<Asking<B, E>>,
    }
}

impl<F, B, E> std::fmt::Debug for RateLimitFuture<F, B, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RateLimitFuture")
    }
}

impl<F, B, E> RateLimitFuture<F, B, E> {
    fn passed(response: F, headers: Option<RateLimitHeaders>) -> RateLimitFuture<F, B, E> {
        RateLimitFuture { passed: Some(response), headers, refused: None, asking: None }
    }

    fn refused(response: Response<B>) -> RateLimitFuture<F, B, E> {
        RateLimitFuture { passed: None, headers: None, refused: Some(response), asking: None }
    }

    fn asking(asking: Asking<B, E>) -> RateLimitFuture<F, B, E> {
        RateLimitFuture { passed: None, headers: None, refused: None, asking: Some(asking) }
    }
}

impl<F, B, E> Future for RateLimitFuture<F, B, E>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<B>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Some(asking) = this.asking {
            return asking.as_mut().poll(cx);
        }
        let Some(passed) = this.passed.as_pin_mut() else {
            return Poll::Ready(Ok(this.refused.take().expect("a future is not polled after it was ready")));
        };
        let mut response = ready!(passed.poll(cx))?;
        if let Some(headers) = this.headers.take() {
            add_headers(&mut response, headers);
        }
        Poll::Ready(Ok(response))
    }
}

/// Appended, not inserted: layers may be nested, and both fields are lists.
fn add_headers<B>(response: &mut Response<B>, headers: RateLimitHeaders) {
    let map = response.headers_mut();
    let texts = [
        (RATE_LIMIT_POLICY, Some(headers.policy)),
        (RATE_LIMIT, Some(headers.rate_limit)),
        (RETRY_AFTER, headers.retry_after),
    ];
    for (name, text) in texts {
        if let Some(value) = text.and_then(|text| HeaderValue::try_from(text).ok()) {
            map.append(name, value);
        }
    }
}

fn denial<B: From<String>>(answer: &Answer) -> Response<B> {
    let status = StatusCode::TOO_MANY_REQUESTS;
    let mut body = String::with_capacity(512);
    body.push('{');
    headers::push_answer_members(&mut body, answer);
    body.push(',');
    headers::push_problem_members(&mut body, answer, status.as_u16());
    body.push('}');
    let mut response = problem(status, body);
    if let Some(headers) = RateLimitHeaders::of(answer) {
        add_headers(&mut response, headers);
    }
    response
}

/// The client sent a key out of bounds, or the service asks for a limiter that does not exist. The
/// latter is our side's mistake and is no admission: a limiter that was named must limit.
fn failure<B: From<String>>(error: &AskError) -> Response<B> {
    let (status, code, detail) = match error {
        AskError::Key(error) => (StatusCode::BAD_REQUEST, "bad_key", error.to_string()),
        AskError::Store(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "store_unavailable",
            "the rate limiter's store does not do this".to_owned(),
        ),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "limiter_failed", "the rate limiter is misconfigured".to_owned()),
    };
    let title = status.canonical_reason().unwrap_or_default();
    let number = status.as_u16();
    problem(
        status,
        format!(
            r#"{{"type":"about:blank","title":"{title}","status":{number},"code":"{code}","detail":"{detail}; nothing was charged"}}"#
        ),
    )
}

fn problem<B: From<String>>(status: StatusCode, body: String) -> Response<B> {
    let mut response = Response::new(B::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreError;

    /// It was 500, "misconfigured", in programs that were built for etcd and not for Redis.
    #[test]
    fn a_question_that_the_store_cannot_answer_is_503_whichever_stores_are_built_in() {
        let refused = AskError::Store(StoreError::Unsupported("etcd does not do this".to_owned()));
        assert_eq!(failure::<String>(&refused).status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
