//! Fields for scripts of one of several origins, in responses that the server itself generates.

use super::{Exchange, Routes};
use crate::service::{Flow, HeadPosition, RequestContext, ResponseWriter};
use pollux_http::request::Request;

impl Routes {
    /// Begins a request to a site that scripts of several origins may read.
    #[cold]
    pub(super) fn begin_by_origin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        context.allow_origin(self.cors.as_ref().and_then(|cors| cors.find(request)));
        let before = response.position();
        let flow = self.begin_checked(context, request, response);
        self.put_origin(context, response, Some(before));
        flow
    }

    /// Completes the head that a service has written since `before`, if there is one and the request's origin
    /// is in the list. The head of a later response is completed when it is written.
    pub(super) fn put_origin(
        &self,
        context: &mut RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
        before: Option<HeadPosition>,
    ) {
        let (Some(cors), Some(before), Some(origin)) =
            (&self.cors, before, context.allowed_origin())
        else {
            return;
        };
        if let Some(fields) = cors.fields_for(origin)
            && response.add_fields(before, fields.as_bytes())
        {
            context.allow_origin(None);
        }
    }
}
